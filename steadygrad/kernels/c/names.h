/* The names of everything that is compiled once for each type and instruction set: `product` stands for
 * product_f32_avx2 where REAL is float and ISA is avx2. C has no namespaces. Functions that steadygrad.c dispatches
 * to are spelled NAME(...) where they are defined. */

/* product.h */
#define vec NAME(vec)
#define mask NAME(mask)
#define panel_count NAME(panel_count)
#define source_t NAME(source_t)
#define transposed NAME(transposed)
#define plain NAME(plain)
#define pack_panel NAME(pack_panel)
#define pack NAME(pack)
#define pack_one NAME(pack_one)
#define left_t NAME(left_t)
#define rows_of NAME(rows_of)
#define no_rows NAME(no_rows)
#define store_part NAME(store_part)
#define load_part NAME(load_part)
#define tile NAME(tile)
#define product NAME(product)

/* mathematics.h */
#define vec_select NAME(vec_select)
#define vec_sqrt NAME(vec_sqrt)
#define vec_abs NAME(vec_abs)
#define vec_exp_parts NAME(vec_exp_parts)
#define vec_expm1 NAME(vec_expm1)
#define vec_exp NAME(vec_exp)
#define vec_tanh NAME(vec_tanh)
#define vec_sigmoid NAME(vec_sigmoid)
#define activate NAME(activate)
#define activation_backward NAME(activation_backward)
#define bias_gradient NAME(bias_gradient)

/* gemm.h */
#define gemm_t NAME(gemm_t)
#define gemm_tile NAME(gemm_tile)
#define gemm_rows NAME(gemm_rows)
#define gemm_slice NAME(gemm_slice)

/* resets.h */
#define previous_rows NAME(previous_rows)
#define stop_gradient NAME(stop_gradient)

/* weights.h */
#define borrow_reals NAME(borrow_reals)
#define sums_t NAME(sums_t)
#define sums_weights NAME(sums_weights)
#define sums_size NAME(sums_size)
#define sums_open NAME(sums_open)
#define sums_weight NAME(sums_weight)
#define sums_bias NAME(sums_bias)
#define sums_clear NAME(sums_clear)
#define sum_slices NAME(sum_slices)
#define sums_close NAME(sums_close)
#define chunk_t NAME(chunk_t)
#define outer_t NAME(outer_t)
#define outer_open NAME(outer_open)
#define outer_close NAME(outer_close)
#define outer_add NAME(outer_add)
#define outer_flush NAME(outer_flush)
#define outer_reserve NAME(outer_reserve)
#define outer_reserve_span NAME(outer_reserve_span)

/* setup.h */
#define setup_t NAME(setup_t)
#define part_t NAME(part_t)
#define run_part_t NAME(run_part_t)
#define walk_job_t NAME(walk_job_t)
#define walk_slice NAME(walk_slice)
#define run_walk NAME(run_walk)

/* exponential.h */
#define exponential_t NAME(exponential_t)
#define exponential_gemm NAME(exponential_gemm)
#define exponential_combine NAME(exponential_combine)
#define exponential_add NAME(exponential_add)
#define exponential_gather NAME(exponential_gather)
#define exponential_skew NAME(exponential_skew)
#define exponential_last_factor NAME(exponential_last_factor)

/* elman.h */
#define elman_forward_t NAME(elman_forward_t)
#define elman_backward_t NAME(elman_backward_t)
#define elman_activate NAME(elman_activate)
#define elman_activation_backward NAME(elman_activation_backward)
#define complex_activate NAME(complex_activate)
#define complex_activation_backward NAME(complex_activation_backward)
#define elman_activate_any NAME(elman_activate_any)
#define elman_forward_slice NAME(elman_forward_slice)
#define elman_activation_backward_any NAME(elman_activation_backward_any)
#define elman_backward_slice NAME(elman_backward_slice)

/* gru.h */
#define gru_forward_t NAME(gru_forward_t)
#define gru_backward_t NAME(gru_backward_t)
#define gru_forward_slice NAME(gru_forward_slice)
#define gru_after_forward_slice NAME(gru_after_forward_slice)
#define gru_backward_slice NAME(gru_backward_slice)
#define gru_after_backward_slice NAME(gru_after_backward_slice)

/* lstm.h */
#define lstm_forward_t NAME(lstm_forward_t)
#define lstm_backward_t NAME(lstm_backward_t)
#define lstm_activate NAME(lstm_activate)
#define lstm_activation_backward NAME(lstm_activation_backward)
#define lstm_forward_slice NAME(lstm_forward_slice)
#define lstm_backward_slice NAME(lstm_backward_slice)

/* attention.h */
#define memory_t NAME(memory_t)
#define attention_forward_t NAME(attention_forward_t)
#define attention_backward_t NAME(attention_backward_t)
#define recent_row NAME(recent_row)
#define age_after_resets NAME(age_after_resets)
#define empty_memory NAME(empty_memory)
#define steps_before NAME(steps_before)
#define dot NAME(dot)
#define add_scaled NAME(add_scaled)
#define exp_2x NAME(exp_2x)
#define logit NAME(logit)
#define scalar_exp NAME(scalar_exp)
#define items_of NAME(items_of)
#define attend NAME(attend)
#define update_memory NAME(update_memory)
#define attention_forward_slice NAME(attention_forward_slice)
#define attend_backward NAME(attend_backward)
#define attention_backward_slice NAME(attention_backward_slice)
