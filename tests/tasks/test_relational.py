"""Tasks of shapes: the images determine the answer, and tests use held-out shapes and relations."""

import math
from dataclasses import replace
from functools import lru_cache

import pytest
import torch
from torch import Generator

from steadygrad.tasks import (
    RMTS,
    RMTS3,
    TASKS,
    Comparison,
    DistributionOfN,
    IdentityRules,
    IdentityRules4,
    SameDifferent,
    SameDifferent6,
    TransitiveComparison,
)
from steadygrad.tasks.relational import glyphs
from steadygrad.tasks.relational.shapes import ShapeTask, join_disjoint

OWN_GLYPHS = {"glyphs": "own"}  # does not depend on which data are available
PATTERNS = [
    SameDifferent(**OWN_GLYPHS),
    SameDifferent(**OWN_GLYPHS, separated=True),
    SameDifferent(**OWN_GLYPHS, colour=True),
    RMTS(**OWN_GLYPHS),
    RMTS(**OWN_GLYPHS, colour=True),
    DistributionOfN(**OWN_GLYPHS),
    DistributionOfN(**OWN_GLYPHS, n=5, held_out=94),
    DistributionOfN(**OWN_GLYPHS, n=5, held_out=94, restricted=True),
    IdentityRules(**OWN_GLYPHS),
    SameDifferent6(**OWN_GLYPHS),
    RMTS3(**OWN_GLYPHS),
    IdentityRules4(**OWN_GLYPHS),
    IdentityRules4(**OWN_GLYPHS, missing=True),
    IdentityRules4(**OWN_GLYPHS, flipped=True),
    IdentityRules4(**OWN_GLYPHS, missing=True, flipped=True),
]
COMPARISON_TASKS = [Comparison(**OWN_GLYPHS), Comparison(**OWN_GLYPHS, colour=True), TransitiveComparison(**OWN_GLYPHS)]
every_pattern = pytest.mark.parametrize("task", PATTERNS, ids=repr)
every_shape_task = pytest.mark.parametrize("task", PATTERNS + COMPARISON_TASKS, ids=repr)
both_sides = pytest.mark.parametrize("unseen", [False, True], ids=["training", "tests"])


def problems(task, unseen, batch=200, seed=0):
    return task.problems(batch, Generator().manual_seed(seed), unseen)


def glyph_numbers(images):
    """Return the indices of the glyphs on images (…, 3, 32, 32), which may have a coloured background."""
    channel = images[..., 0, :, :]
    ink = (channel / channel.amax((-1, -2), keepdim=True)).flatten(-2)
    table = glyphs.draw_glyphs().flatten(1)
    number = (ink @ table.T - table.square().sum(1) / 2).argmax(-1)
    assert (ink - table[number]).abs().max() < 1e-6
    return number.tolist()


def pattern(shapes):
    """Return the pattern of a sequence of shapes: ABA if of three shapes only the first and the last are equal."""
    order = list(dict.fromkeys(shapes))
    return "".join(chr(ord("A") + order.index(shape)) for shape in shapes)


def parts(shapes, *sizes):
    found = []
    for size in sizes:
        found.append(shapes[:size])
        shapes = shapes[size:]
    assert not shapes
    return found


# Expected answers, computed from the images.


def same_or_different(task, shapes):
    half = len(shapes) // 2
    return int(shapes[:half] != shapes[half:])


def which_matches(task, shapes):
    source, *targets = map(pattern, parts(shapes, *[len(shapes) // 3] * 3))
    assert (source == targets[0]) != (source == targets[1])
    return targets.index(source)


def what_is_missing(task, shapes):
    first, second, candidates = parts(shapes, task.n, task.n - 1, task.n + 1)
    (missing,) = set(first) - set(second)
    assert len(set(first)) == task.n
    assert set(first) < set(candidates)
    return candidates.index(missing)


def what_follows(task, shapes):
    *_, size = task.rows
    first, second, candidates = parts(shapes, task.row, task.row - 1, size)
    before = first.index(first[-1])  # an earlier place of the last shape of a row
    assert pattern(first[:-1]) == pattern(second)
    assert len(set(candidates)) == size
    assert set(first) | set(second) <= set(candidates)
    assert not set(first) & set(second)
    return candidates.index(second[before])


ANSWER = {
    SameDifferent: same_or_different,
    SameDifferent6: same_or_different,
    RMTS: which_matches,
    RMTS3: which_matches,
    DistributionOfN: what_is_missing,
    IdentityRules: what_follows,
    IdentityRules4: what_follows,
}


@lru_cache
def read(task, unseen, **options):
    images, targets = problems(task, unseen, **options)
    if isinstance(task, SameDifferent) and task.separated:
        images = images[:, ::2]
    return glyph_numbers(images), targets.tolist()


@both_sides
@every_pattern
def test_answers_follow_from_the_images(task, unseen):
    shapes, targets = read(task, unseen)
    assert [ANSWER[type(task)](task, row) for row in shapes] == targets


@both_sides
@every_pattern
def test_different_letters_are_different_shapes(task, unseen):
    letters, _ = task.arrange(200, Generator().manual_seed(0), unseen)
    shapes, _ = read(task, unseen)
    assert [pattern(row) for row in shapes] == [pattern(row) for row in letters.tolist()]


@both_sides
@every_shape_task
def test_answers_are_balanced(task, unseen):
    _, targets = problems(task, unseen, 4000)
    counts, p = targets.bincount(minlength=task.output_size), 1 / task.output_size
    assert len(counts) == task.output_size
    assert ((counts - 4000 * p).abs() < 5 * math.sqrt(4000 * p * (1 - p))).all()


# Shapes.


@every_pattern
def test_training_and_tests_share_no_shape(task):
    seen, unseen = ({shape for row in read(task, side)[0] for shape in row} for side in (False, True))
    assert seen == set(task.shapes(False).tolist())
    assert len(seen) == 100 - task.held_out
    assert unseen <= set(task.shapes(True).tolist())
    assert len(task.shapes(True)) == task.held_out
    assert not seen & unseen


@every_pattern
def test_shapes_seed_determines_the_held_out_shapes(task):
    held_out = set(task.shapes(True).tolist())
    assert set(replace(task, shapes_seed=0).shapes(True).tolist()) == held_out
    assert set(replace(task, shapes_seed=1).shapes(True).tolist()) != held_out


@both_sides
def test_training_and_tests_use_all_shapes_if_none_is_held_out(unseen):
    shapes, _ = read(RMTS(**OWN_GLYPHS, held_out=0), unseen)
    assert {shape for row in shapes for shape in row} == set(range(100))


@every_pattern
def test_sample_unseen_uses_held_out_shapes(task):
    images, targets = task.sample_unseen(20, Generator().manual_seed(3))
    expected, answers = problems(task, True, 20, seed=3)
    assert torch.equal(images, expected)
    assert torch.equal(targets, answers)


DEFAULTS = {
    "same-different": (98, 2, 2),
    "rmts": (95, 5, 5),
    "distribution-of-n": (95, 4, 4),
    "identity-rules": (95, 4, 4),
    "same-different-6": (98, 2, 2),
    "rmts-3": (94, 6, 8),
    "identity-rules-4": (94, 6, 6),
    "comparison": (95, 1, 1),
    "transitive-comparison": (95, 1, 1),
}


@pytest.mark.parametrize(("name", "held_out", "seen", "unseen"), [(n, *v) for n, v in DEFAULTS.items()], ids=DEFAULTS)
def test_held_out_has_the_default_and_the_limits_of_the_thesis(name, held_out, seen, unseen):
    """A value that leaves too few shapes for training or for tests is refused."""
    cls = TASKS[name]
    assert cls(**OWN_GLYPHS).held_out == held_out
    most = 100 - seen
    assert most >= held_out
    with pytest.raises(
        ValueError,
        match=f"{cls.__name__} expects held_out to be at most {most}, as training needs {seen} shapes; got {most + 1}",
    ):
        cls(held_out=most + 1)
    if unseen > 1:
        with pytest.raises(
            ValueError,
            match=f"{cls.__name__} expects held_out to be 0 or at least {unseen} for tests; got {unseen - 1}",
        ):
            cls(held_out=unseen - 1)
    for right in (0, unseen, most):
        assert cls(held_out=right).held_out == right
    assert set(DEFAULTS) == {name for name, cls in TASKS.items() if issubclass(cls, ShapeTask)}


# Relations of training and of tests.


def patterns_of(task, unseen, *sizes):
    shapes, _ = read(task, unseen, batch=400)
    return [tuple(map(pattern, parts(row, *sizes))) for row in shapes]


def count_each(found):
    return {one: found.count(one) for one in sorted(set(found))}


def about_even(counts, total=400):
    share = total / len(counts)
    return all(abs(count - share) < 5 * math.sqrt(share) for count in counts.values())


def test_rmts_uses_all_patterns_equally_often():
    for unseen in (False, True):
        counts = count_each(patterns_of(RMTS(**OWN_GLYPHS), unseen, 2, 2, 2))
        assert counts.keys() == {
            ("AA", "AA", "AB"),
            ("AA", "AB", "AA"),
            ("AB", "AB", "AA"),
            ("AB", "AA", "AB"),
        }
        assert about_even(counts)


def test_rmts_shares_no_shape_between_groups():
    for task in (RMTS(**OWN_GLYPHS), RMTS3(**OWN_GLYPHS)):
        for row in read(task, True)[0]:
            groups = [set(group) for group in parts(row, *[task.group] * 3)]
            assert len(set.union(*groups)) == sum(map(len, groups))


@pytest.mark.parametrize(("unseen", "kinds"), [(False, {"AAA", "ABA", "ABB"}), (True, {"ABC", "AAB"})])
def test_rmts_3_uses_different_triples_in_training_and_tests(unseen, kinds):
    counts = count_each(patterns_of(RMTS3(**OWN_GLYPHS), unseen, 3, 3, 3))
    assert {kind for triples in counts for kind in triples} == kinds
    assert len(counts) == 2 * len(kinds) * (len(kinds) - 1)  # source, other pattern, and the place of the right answer
    assert about_even(counts)


def test_same_different_6_has_a_triple_that_only_tests_use():
    """Every test problem has a triple AAB, no training problem has one."""
    task = SameDifferent6(**OWN_GLYPHS)
    new = {"AAB"}
    for unseen in (False, True):
        triples = patterns_of(task, unseen, 3, 3)
        together = [pattern(row) for row in read(task, unseen, batch=400)[0]]
        assert all(len(set(one)) <= 2 for one in together)
        assert all(bool(set(pair) & new) == unseen for pair in triples)
        assert {one for pair in triples for one in pair} == {"AAA", "ABA", "ABB"} | (new if unseen else set())
        different = count_each([pair for pair in triples if pair[0] != pair[1]])
        assert len(different) == 6
        assert about_even(different, sum(different.values()))


def test_identity_rules_uses_three_rules_equally_often():
    rules = [pattern(row[:3]) for row in read(IdentityRules(**OWN_GLYPHS), False, batch=400)[0]]
    assert count_each(rules).keys() == {"AAA", "ABA", "ABB"}
    assert about_even(count_each(rules))


RULES_OF_TWO_SHAPES = {"AAAA", "ABAA", "AABA", "ABBB", "ABBA", "ABAB", "AABB"}
RULES_OF_THREE_SHAPES = {"ABCA", "ABCB", "ABCC"}


@pytest.mark.parametrize(
    ("options", "training", "tests"),
    [
        ({}, RULES_OF_TWO_SHAPES, RULES_OF_THREE_SHAPES),
        ({"missing": True}, RULES_OF_TWO_SHAPES - {"ABAA", "ABAB"}, RULES_OF_THREE_SHAPES),
        ({"flipped": True}, RULES_OF_THREE_SHAPES, RULES_OF_TWO_SHAPES),
        ({"flipped": True, "missing": True}, RULES_OF_THREE_SHAPES - {"ABCA"}, RULES_OF_TWO_SHAPES),
    ],
)
def test_identity_rules_4_uses_different_rules_in_training_and_tests(options, training, tests):
    task = IdentityRules4(**OWN_GLYPHS, **options)
    for unseen, rules in ((False, training), (True, tests)):
        counts = count_each([pattern(row[:4]) for row in read(task, unseen, batch=400)[0]])
        assert counts.keys() == rules
        assert about_even(counts)


def permutations_used(task, unseen, batch=400):
    """Return the permutations that turn the first row into the second row."""
    found = []
    for row in read(task, unseen, batch=batch)[0]:
        first, second, _ = parts(row, task.n, task.n - 1, task.n + 1)
        order = [first.index(shape) for shape in second]
        found.append((*order, *(set(range(task.n)) - set(order))))
    return found


@both_sides
def test_distribution_of_three_has_all_permutations(unseen):
    counts = count_each(permutations_used(DistributionOfN(**OWN_GLYPHS), unseen))
    assert len(counts) == 6
    assert about_even(counts)


@pytest.mark.parametrize("n", [4, 5, 10])
def test_only_training_uses_restricted_permutations(n):
    task = DistributionOfN(**OWN_GLYPHS, n=n, held_out=99 - n, restricted=True)
    for unseen in (False, True):
        assert {set(order[: n - 3]) == set(range(n - 3)) for order in permutations_used(task, unseen)} == {not unseen}


def test_restricted_permutations_are_equally_likely():
    """Of the 24 permutations of four shapes, 6 leave the first shape in its place."""
    task = DistributionOfN(**OWN_GLYPHS, n=4, restricted=True)
    for unseen, count in ((False, 6), (True, 18)):
        counts = count_each(permutations_used(task, unseen, batch=400))
        assert len(counts) == count
        assert about_even(counts)


def test_restricted_needs_at_least_four_shapes():
    with pytest.raises(ValueError, match="DistributionOfN expects n to be at least 4 if restricted is true; got 3"):
        DistributionOfN(restricted=True)


def test_n_limits_held_out():
    with pytest.raises(
        ValueError, match="DistributionOfN expects held_out to be at most 89, as training needs 11 shapes; got 95"
    ):
        DistributionOfN(n=10)
    assert DistributionOfN(n=10, held_out=89).rows == (10, 9, 11)


def test_join_disjoint_renames_letters():
    assert join_disjoint("ABA", "AA", "AB") == "ABACCDE"
    assert join_disjoint("AAB") == "AAB"


# Sizes.


@pytest.mark.parametrize(
    ("task", "training", "tests"),
    [(COMPARISON_TASKS[0], {(16, 32)}, {(16, 32)}), (COMPARISON_TASKS[2], {(16, 24), (24, 32)}, {(16, 32)})],
    ids=repr,
)
def test_the_larger_shape_has_more_ink(task, training, tests):
    """The amount of ink is proportional to the square of the size."""
    for unseen, pairs in ((False, training), (True, tests)):
        images, targets = problems(task, unseen)
        ink = (1 - images).sum((-1, -2, -3)).double()
        assert torch.equal(ink.argmax(1), targets)
        ratio = (ink.amin(1) / ink.amax(1)).sqrt()
        expected = torch.tensor([small / large for small, large in sorted(pairs)], dtype=torch.float64)
        nearest = (ratio[:, None] - expected).abs().min(dim=1)
        assert nearest.values.max() < 0.03
        assert set(nearest.indices.tolist()) == set(range(len(pairs)))


def test_comparison_shows_one_shape_in_two_sizes():
    task = COMPARISON_TASKS[0]
    large = {}
    for unseen in (False, True):
        images, targets = problems(task, unseen)
        largest = images[torch.arange(len(targets)), targets]
        smallest = images[torch.arange(len(targets)), 1 - targets]
        shrunk = torch.nn.functional.avg_pool2d(largest, 2)
        assert (
            shrunk - smallest[..., 8:24, 8:24]
        ).abs().mean() < 0.03  # the centre is the large image at half the size
        frame = smallest.clone()
        frame[..., 8:24, 8:24] = 1
        assert (frame == 1).all()
        large[unseen] = {shape for (shape,) in glyph_numbers(largest[:, None])}
    assert large[False] == set(task.shapes(False).tolist())
    assert not large[True] & large[False]


# Colours.


@pytest.mark.parametrize("cls", [SameDifferent, RMTS, DistributionOfN, IdentityRules, Comparison])
def test_colour_changes_only_the_background(cls):
    plain, answers = problems(cls(**OWN_GLYPHS), True)
    coloured, targets = problems(cls(**OWN_GLYPHS, colour=True), True)
    assert torch.equal(targets, answers)
    paper = coloured.amax((-1, -2))
    torch.testing.assert_close(coloured, plain * paper[..., None, None])
    table = {tuple(colour) for colour in glyphs.colours().tolist()}
    found = [tuple(colour) for colour in paper.flatten(0, 1).tolist()]
    assert set(found) <= table
    assert len(set(found)) > 90
    alike = torch.tensor([len({tuple(colour) for colour in row}) < len(row) for row in paper.tolist()])
    assert 0 < alike.float().mean() < 0.5  # drawn independently, with replacement


def test_there_are_a_hundred_colours():
    table = glyphs.colours()
    assert table.shape == (100, 3)
    assert len(table.unique(dim=0)) == 100
    assert table[0].tolist() == pytest.approx(
        [0.5488135, 0.71518937, 0.60276338]
    )  # the first numbers of NumPy's seed 0


def test_separated_colours_are_separate_images():
    images, _ = problems(SameDifferent(**OWN_GLYPHS, separated=True), True)
    assert images.shape == (200, 4, 3, 32, 32)
    colours = images[:, 1::2]
    assert torch.equal(colours.amax((-1, -2)), colours.amin((-1, -2)))
    table = {tuple(colour) for colour in glyphs.colours().tolist()}
    found = {tuple(colour) for colour in colours[..., 0, 0].flatten(0, 1).tolist()}
    assert found <= table
    assert len(found) > 90
    with pytest.raises(ValueError, match="SameDifferent expects colour or separated to be false; got true for both"):
        SameDifferent(colour=True, separated=True)


@pytest.mark.parametrize(
    ("cls", "field"),
    [
        (SameDifferent, "colour"),
        (SameDifferent, "separated"),
        (DistributionOfN, "restricted"),
        (IdentityRules4, "missing"),
        (IdentityRules4, "flipped"),
    ],
)
@pytest.mark.parametrize("value", [1, 0, "true", None])
def test_flags_must_be_bools(cls, field, value):
    with pytest.raises(ValueError, match=f"{cls.__name__} expects {field} to be true or false; got {value!r}"):
        cls(**{field: value})


# Sizes that networks need.


SIZES = {
    "same-different": (2, 2),
    "rmts": (6, 2),
    "distribution-of-n": (9, 4),
    "identity-rules": (9, 4),
    "same-different-6": (6, 2),
    "rmts-3": (9, 2),
    "identity-rules-4": (13, 6),
    "comparison": (2, 2),
    "transitive-comparison": (2, 2),
}


@pytest.mark.parametrize(("name", "objects", "answers"), [(n, *v) for n, v in SIZES.items()], ids=SIZES)
def test_numbers_of_objects_and_answers_agree_with_the_thesis(name, objects, answers):
    task = TASKS[name](**OWN_GLYPHS)
    images, targets = task.sample(3, Generator().manual_seed(0))
    assert images.shape == (3, objects, 3, 32, 32)
    assert (targets.shape, targets.dtype) == ((3,), torch.int64)
    assert (task.objects, task.steps, task.output_size) == (objects, objects, answers)
    assert (task.channels, task.image_size, task.input_size) == (3, 32, 3 * 32 * 32)
    assert 0 <= images.min() < images.max() <= 1
    assert task.guessing_loss == pytest.approx(math.log(answers))


@every_shape_task
def test_segments_contain_every_object_once(task):
    assert [i for begin, end in task.segments for i in range(begin, end)] == list(range(task.objects))


def test_match_to_sample_has_one_segment_per_group():
    """All other tasks have one segment."""
    assert RMTS(**OWN_GLYPHS).segments == ((0, 2), (2, 4), (4, 6))
    assert RMTS3(**OWN_GLYPHS).segments == ((0, 3), (3, 6), (6, 9))
    for task in (
        SameDifferent(**OWN_GLYPHS),
        SameDifferent6(**OWN_GLYPHS),
        DistributionOfN(**OWN_GLYPHS),
        IdentityRules4(**OWN_GLYPHS),
    ):
        assert task.segments == ((0, task.objects),)


@every_shape_task
def test_an_example_shows_the_problem_row_by_row(task):
    picture, target = task.example(Generator().manual_seed(0))
    images, targets = task.sample(1, Generator().manual_seed(0))
    assert target == targets.item()
    assert picture.shape == (3, 36 * len(task.rows), 36 * max(task.rows))
    column = task.rows[-1] - 1
    assert torch.equal(picture[:, -34:-2, 36 * column + 2 : 36 * column + 34], images[0, -1])
    assert torch.equal(picture[:, 2:34, 2:34], images[0, 0])
    assert (picture[:, :2] == 0.5).all()
