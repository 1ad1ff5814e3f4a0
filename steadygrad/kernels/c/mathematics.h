/* Functions of vectors. All comparisons let NaN pass through, so that a diverged run shows NaN. */
INLINE vec vec_select(mask where, vec yes, vec no) { return (vec)((where & (mask)yes) | (~where & (mask)no)); }
INLINE vec vec_sqrt(vec x) {
    for (int k = 0; k < LANES; k++) x[k] = sizeof(REAL) == 4 ? (REAL)sqrtf((float)x[k]) : (REAL)sqrt((double)x[k]);
    return x;
}
INLINE vec vec_abs(vec x) { return vec_select((mask)(x < 0), -x, x); }

/* Return 2ⁿ and store exp(r) − 1 in `rest`, for x = n ln 2 + r, |r| ≤ ln 2 / 2. */
INLINE vec vec_exp_parts(vec x, vec *rest) {
    const int single = sizeof(REAL) == 4;
    const REAL magic =
        single ? (REAL)12582912.0 : (REAL)6755399441055744.0; /* 1.5 · 2²³, 1.5 · 2⁵²: rounds to integers */
    const REAL high = single ? (REAL)0.693359375 : (REAL)6.93147180369123816490e-01;
    const REAL low = single ? (REAL)-2.12194440e-4 : (REAL)1.90821492927058770002e-10; /* ln 2 = high + low */
    vec shifted = x * (REAL)1.44269504088896340736 + magic;
    vec n = shifted - magic;
    vec r = x - n * high - n * low;
    vec sum = {0};
    for (int k = single ? 7 : 13; k >= 2; k--) { /* 1/2! + r/3! + … by Horner; |r| < 0.347: 7, 13 suffice */
        static const REAL inverse_factorial[14] = {
            1,         1,          0.5,         1. / 6,       1. / 24,       1. / 120,       1. / 720,
            1. / 5040, 1. / 40320, 1. / 362880, 1. / 3628800, 1. / 39916800, 1. / 479001600, 1. / 6227020800.};
        sum = sum * r + inverse_factorial[k];
    }
    vec small = r + r * r * sum;
    mask bits = (mask)shifted; /* the low bits hold the integer n; shifted left it is the exponent of 2ⁿ */
    *rest = small;
    return (vec)((bits + (single ? 127 : 1023)) << (single ? 23 : 52));
}

/* exp(x) − 1 is accurate for small |x|, and exp(x) for very negative x, where the other form loses its digits. */
INLINE vec vec_expm1(vec x) {
    vec rest, two_n = vec_exp_parts(x, &rest);
    return two_n * rest + (two_n - 1);
}
INLINE vec vec_exp(vec x) {
    vec rest, two_n = vec_exp_parts(x, &rest);
    return two_n * rest + two_n;
}

/* tanh(x) = sign(x) t / (t + 2),  t = exp(2|x|) − 1 */
INLINE vec vec_tanh(vec x) {
    const REAL most = sizeof(REAL) == 4 ? (REAL)9.1 : (REAL)19.1; /* beyond it tanh(x) rounds to 1 */
    vec size = vec_abs(x), limit = (vec){0} + most;
    size = vec_select((mask)(size > limit), limit, size);
    vec t = vec_expm1(size + size);
    vec y = t / (t + 2);
    return vec_select((mask)(x < 0), -y, y);
}

/* sigmoid(x) = 1 / (1 + exp(−x)) */
INLINE vec vec_sigmoid(vec x) {
    const REAL most = sizeof(REAL) == 4 ? (REAL)87 : (REAL)708;
    vec limit = (vec){0} + most;
    x = vec_select((mask)(x > limit), limit, x);
    x = vec_select((mask)(x < -limit), -limit, x);
    return 1 / (vec_expm1(-x) + 2);
}

/* φ(z); `b` is the bias of modReLU, other activations ignore it. */
INLINE vec activate(int activation, vec z, vec b) {
    vec zero = {0};
    switch (activation) {
        case MODRELU: {
            vec size = vec_abs(z) + b;
            size = vec_select((mask)(size <= zero), zero, size);
            size = vec_select((mask)(z < zero), -size, size);
            return vec_select((mask)(z == zero), zero, size);
        }
        case TANH: return vec_tanh(z);
        case RELU: return vec_select((mask)(z <= zero), zero, z);
        default: return z;
    }
}

/* φ'(z) times `gradient`, computed from the value y = φ(z) alone. */
INLINE vec activation_backward(int activation, vec y, vec gradient) {
    vec zero = {0};
    switch (activation) {
        case MODRELU: return vec_select((mask)(y == zero), zero, gradient);
        case TANH: return gradient - gradient * y * y;
        case RELU: return vec_select((mask)(y <= zero), zero, gradient);
        default: return gradient;
    }
}

/* The gradient of the bias from the gradient d of z. The bias of modReLU is added to the modulus, hence the sign. */
INLINE vec bias_gradient(int activation, vec y, vec d) {
    return activation == MODRELU ? vec_select((mask)(y < (vec){0}), -d, d) : d;
}

/* Loop over the vectors of `length` numbers: j is the first index of a vector, `count` the numbers from j on. */
#define EACH_VECTOR(j, count, length) for (int64_t j = 0, count = 0; count = (length) - j, j < (length); j += LANES)
