"""Relational games: pixels determine the answers, and pieces and places agree with the authors' published images."""

import io
import math
from collections import Counter
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import Generator

from steadygrad.tasks import RelationalGame
from steadygrad.tasks.data import VARIABLE, data_set
from steadygrad.tasks.relational import games
from steadygrad.tasks.relational.games import GAMES, REAL_FILES, read_images
from steadygrad.tasks.relational.pieces import HEXOMINOES, PENTOMINOES, luminance, polyominoes, stripes

SETS = [
    *((game, shapes) for game in GAMES for shapes in ("pentominoes", "hexominoes")),
    *((game, "stripes") for game in ("same", "between", "occurs", "xoccurs", "row-matching")),
]
every_set = pytest.mark.parametrize(("game", "shapes"), SETS, ids=map("-".join, SETS))
BLANK = bytes(3 * 12 * 12 * 4)
LINES = {(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)}


@lru_cache
def problems(game, shapes, batch=400):
    generator = Generator().manual_seed(0)
    if shapes == "pentominoes":
        return RelationalGame(game).sample(batch, generator)
    return RelationalGame(game, shapes).sample_unseen(batch, generator)


def objects_by_place(images):
    """Return the objects on the images of a grid: {place: image}."""
    return {place: cell for place, cell in enumerate(images.numpy()) if cell.tobytes() != BLANK}


def alike(one, other):
    return bool(np.array_equal(one, other))


def pattern(cells):
    looks = [cell.tobytes() for cell in cells]
    order = list(dict.fromkeys(looks))
    return "".join("ABCDEF"[order.index(look)] for look in looks)


# Expected answers, computed from the pixels.


def same(objects):
    one, other = objects.values()
    return int(alike(one, other))


def between(objects):
    first, _, last = objects.values()
    return int(tuple(objects) in LINES and alike(first, last))


def lower_row(objects):
    (above,) = (cell for place, cell in objects.items() if place < 3)
    assert [place for place in objects if place >= 3] == [6, 7, 8]
    return above, [objects[place] for place in (6, 7, 8)]


def occurs(objects):
    above, below = lower_row(objects)
    return int(any(alike(above, cell) for cell in below))


def xoccurs(objects):
    above, below = lower_row(objects)
    others = [cell for cell in below if not alike(above, cell)]
    assert len(others) >= 2  # the upper object occurs at most once in the lower row
    return int(len(others) == 2 and not alike(*others))


def row_matching(objects):
    assert sorted(objects) == [0, 1, 2, 6, 7, 8]
    rows = [[objects[place] for place in places] for places in ((0, 1, 2), (6, 7, 8))]
    return int(pattern(rows[0]) == pattern(rows[1]))


def colour(cell):
    return tuple(cell.max((1, 2)).tolist())


def form(cell):
    return (cell.max(0) > 0).tobytes()


def colour_shape(objects):
    one, other = objects.values()
    return 2 * (colour(one) != colour(other)) + (form(one) != form(other))


def left_of(objects):
    (place, one), (other_place, other) = objects.items()
    weights = np.array([0.2126, 0.7152, 0.0722])
    lightness = [np.array(colour(cell)) @ weights for cell in (one, other)]
    assert lightness[0] != lightness[1]
    dark, light = (place, other_place) if lightness[0] < lightness[1] else (other_place, place)
    if dark % 3 != light % 3:
        return int(dark % 3 < light % 3)
    return int(dark // 3 > light // 3)


ANSWER = {
    "same": same,
    "between": between,
    "occurs": occurs,
    "xoccurs": xoccurs,
    "row-matching": row_matching,
    "colour-shape": colour_shape,
    "left-of": left_of,
}


@every_set
def test_answers_follow_from_the_pixels(game, shapes):
    images, targets = problems(game, shapes)
    assert [ANSWER[game](objects_by_place(cells)) for cells in images] == targets.tolist()


@every_set
def test_answers_are_balanced(game, shapes):
    _, targets = problems(game, shapes, 2000)
    answers = 4 if game == "colour-shape" else 2
    counts, p = targets.bincount(minlength=answers), 1 / answers
    assert len(counts) == answers == RelationalGame(game).output_size
    assert ((counts - 2000 * p).abs() < 5 * math.sqrt(2000 * p * (1 - p))).all()


@every_set
def test_cells_are_images_with_the_authors_colour_levels(game, shapes):
    images, _ = problems(game, shapes)
    assert images.shape == (400, 9, 3, 12, 12)
    assert images.dtype == torch.float32
    assert set(images.unique().tolist()) == {float(np.float32(level / 255)) for level in (0, 64, 144, 192)}


def test_probabilities_of_boards_sum_to_one():
    for boards in (games.same, games.between, games.occurs, games.xoccurs, games.row_matching):
        found = boards()
        assert sum(share for *_, share in found) == pytest.approx(1)
        assert sum(share for _, answer, share in found if answer) == pytest.approx(1 / 2)
        assert all(len(board) == 9 and set(board) <= set("ABCDEF.") for board, *_ in found)


def test_objects_occur_at_all_allowed_places():
    places = {
        game: Counter(tuple(objects_by_place(cells)) for cells in problems(game, "pentominoes", 2000)[0])
        for game in GAMES
    }
    assert len(places["same"]) == len(places["colour-shape"]) == len(places["left-of"]) == 36
    assert places["between"].keys() > LINES
    assert len(places["between"]) == 84
    assert places["occurs"].keys() == places["xoccurs"].keys() == {(top, 6, 7, 8) for top in range(3)}


def test_row_matching_uses_five_patterns_equally_often():
    images, targets = problems("row-matching", "pentominoes", 2000)
    rows = [(pattern(cells[:3].numpy()), pattern(cells[6:].numpy())) for cells in images]
    kinds = {"AAA", "AAB", "ABA", "ABB", "ABC"}
    assert set(rows) == {(one, other) for one in kinds for other in kinds}
    matching = Counter(one for (one, _), target in zip(rows, targets, strict=True) if target)
    assert max(matching.values()) < 1.5 * min(matching.values())


def test_xoccurs_has_three_kinds_of_negative_boards():
    """The lower row lacks the upper object and has three or two different objects, or has it beside two equal ones."""
    images, targets = problems("xoccurs", "pentominoes", 2000)
    denied = Counter()
    for cells, target in zip(images, targets, strict=True):
        above, below = lower_row(objects_by_place(cells))
        if not target:
            denied[any(alike(above, cell) for cell in below), len(set(pattern(below)))] += 1
    total = sum(denied.values())
    assert denied.keys() == {(True, 2), (False, 3), (False, 2)}
    assert denied[True, 2] / total == pytest.approx(1 / 2, abs=0.08)
    assert denied[False, 3] / total == pytest.approx(1 / 4, abs=0.08)


def canonical_form(mask):
    """Return one mask for all rotations and reflections of a form."""
    mask = np.frombuffer(mask, bool).reshape(12, 12)[1:10, 1:10]
    return min(np.rot90(side, turns).tobytes() for side in (mask, mask.T) for turns in range(4))


def test_different_forms_belong_to_different_pieces():
    """A problem never shows one piece in two orientations."""
    images, targets = problems("colour-shape", "pentominoes", 2000)
    for cells, target in zip(images, targets.tolist(), strict=True):
        one, other = objects_by_place(cells).values()
        assert (canonical_form(form(one)) == canonical_form(form(other))) == (target % 2 == 0)


# Pieces.


def test_pieces_are_drawn_as_in_the_published_images():
    """The piece F consists of squares of 3 × 3 pixels, one pixel from the upper left corner."""
    pieces = polyominoes((".##/##./.#.",))
    first = [image[1] for image in pieces.images[:-1].reshape(8, 25, 3, 12, 12)[:, 0].numpy()]  # green of (64, 64, 144)
    drawn = np.kron(np.array([[0, 1, 1], [1, 1, 0], [0, 1, 0]]), np.ones((3, 3)))
    assert sum(np.allclose(np.pad(drawn, (1, 2)) * 64 / 255, image) for image in first) == 1


@pytest.mark.parametrize(
    ("pieces", "count", "forms"),
    [(polyominoes(PENTOMINOES), 5, 37), (polyominoes(HEXOMINOES), 6, 48)],
    ids=["pentominoes", "hexominoes"],
)
def test_polyominoes_are_connected_and_all_different(pieces, count, forms):
    """Eight pentominoes have 37 orientations, as the authors say. Eight hexominoes have 48."""
    images = pieces.images[:-1]
    assert len(images) == forms * 25
    assert len(images.flatten(1).unique(dim=0)) == len(images)
    assert not pieces.images[-1].any()
    squares = images.amax(1)[:, 2:11:3, 2:11:3] > 0
    assert (squares.sum((1, 2)) == count).all()
    assert len({canonical_form(form(image)) for image in images.numpy()}) == 8
    assert pieces.forms.shape == (8, 8)
    assert pieces.forms.unique().tolist() == list(range(forms))
    for square in squares[::25]:
        reached, todo = set(), [tuple(square.nonzero()[0].tolist())]
        while todo:
            row, column = todo.pop()
            if (row, column) not in reached and 0 <= row < 3 and 0 <= column < 3 and square[row, column]:
                reached.add((row, column))
                todo += [(row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)]
        assert len(reached) == count


def test_no_piece_is_in_two_sets():
    """Pentominoes have five squares, hexominoes six, stripes nine."""
    looks = [
        {image.tobytes() for image in pieces.images[:-1].numpy()}
        for pieces in (polyominoes(PENTOMINOES), polyominoes(HEXOMINOES), stripes())
    ]
    assert len(set.union(*looks)) == sum(map(len, looks)) == (37 + 48 + 25) * 25


def test_stripes_have_an_outer_and_an_inner_colour():
    images = stripes().images[:-1]
    assert len(images.flatten(1).unique(dim=0)) == 625
    outer, inner, last = (images[:, :, 1:10, columns] for columns in (slice(1, 4), slice(4, 7), slice(7, 10)))
    assert torch.equal(outer, last)
    for stripe in (outer, inner):
        assert torch.equal(stripe.amax((2, 3)), stripe.amin((2, 3)))
        assert len(stripe[..., 0, 0].unique(dim=0)) == 25


def test_twenty_five_colours_of_different_luminance():
    assert len(luminance()) == 25
    assert luminance().sort().values.diff().min() > 0.1


def test_all_pieces_are_equally_likely():
    """X has one orientation and F has eight; both are equally likely."""
    drawn = polyominoes(PENTOMINOES).draw(8000, 1, Generator().manual_seed(0))[:, 0]
    kinds = Counter(canonical_form(form(image)) for image in polyominoes(PENTOMINOES).images[drawn].numpy())
    assert len(kinds) == 8
    assert all(abs(count - 1000) < 5 * math.sqrt(1000) for count in kinds.values())


# Settings.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"game": "chess"}, "RelationalGame expects game to be one of same, between, .*left-of; got 'chess'"),
        (
            {"test_shapes": "circles"},
            "RelationalGame expects test_shapes to be one of hexominoes, stripes; got 'circles'",
        ),
        ({"real": 1}, "RelationalGame expects real to be true or false; got 1"),
        (
            {"game": "left-of", "test_shapes": "stripes"},
            "expects test_shapes to be hexominoes for left-of; got 'stripes'",
        ),
        ({"game": "colour-shape", "test_shapes": "stripes"}, "to be hexominoes for colour-shape; got 'stripes'"),
        ({"real": True}, "RelationalGame expects game to be one of between if real is true; got 'same'"),
        ({"game": "between", "real": True}, r"RelationalGame expects a folder relational_games .*; got nothing"),
    ],
)
def test_invalid_settings_are_refused(monkeypatch, options, words):
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ValueError, match=words):
        RelationalGame(**options)


def test_sizes_segments_and_training_defaults():
    task = RelationalGame()
    assert (task.objects, task.steps, task.image_size, task.channels) == (9, 9, 12, 3)
    assert task.input_size == 3 * 12 * 12
    assert task.segments == ((0, 9),)
    assert task.training["steps"] == 2500
    assert RelationalGame(game="colour-shape").guessing_loss == pytest.approx(math.log(4))


# The authors' images.


@pytest.mark.parametrize("shapes", ["hexominoes", "stripes"])
def test_tests_with_real_images_split_them_into_cells(tmp_path, monkeypatch, shapes):
    images = np.random.default_rng(0).integers(0, 193, (6, 36, 36, 3))
    labels = np.array([[0], [1], [1], [0], [1], [0]])
    (tmp_path / "relational_games").mkdir()
    np.savez(tmp_path / "relational_games" / REAL_FILES["between", shapes], images=images, labels=labels, tasks=labels)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    task = RelationalGame(game="between", test_shapes=shapes, real=True)
    cells, targets = task.sample_unseen(40, Generator().manual_seed(0))
    met = set()
    for found, target in zip(cells.numpy(), targets.tolist(), strict=True):
        whole = found.reshape(3, 3, 3, 12, 12).transpose(0, 3, 1, 4, 2).reshape(36, 36, 3)
        (number,) = (i for i, image in enumerate(images) if np.allclose(whole, image / 255))
        assert target == labels[number, 0]
        met.add(number)
    assert met == set(range(6))
    upper_right = images[:, :12, 24:].transpose(0, 3, 1, 2) / 255
    assert any(np.allclose(cells[0, 2], corner) for corner in upper_right)
    trained, _ = task.sample(5, Generator().manual_seed(0))
    assert torch.equal(trained, RelationalGame(game="between").sample(5, Generator().manual_seed(0))[0])


def npz(**arrays):
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


IMAGES, ANSWERS = np.zeros((2, 36, 36, 3), np.int64), np.zeros((2, 1), np.int64)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a whole .npz file with images, labels; got EOFError"),
        (b"not an archive", "a whole .npz file with images, labels; got "),
        (npz(images=IMAGES, labels=ANSWERS)[:-30], "a whole .npz file with images, labels; got BadZipFile"),
        (npz(images=IMAGES), "a whole .npz file with images, labels; got KeyError"),
        (npz(images=IMAGES, labels=np.array([None] * 2)), "a whole .npz file with images, labels; got ValueError"),
        (npz(images=IMAGES[:1], labels=ANSWERS), "labels (count, 1) in .*; got (1, 36, 36, 3) and (2, 1)"),
        (npz(images=IMAGES[:0], labels=ANSWERS[:0]), "labels (count, 1) in .*; got (0, 36, 36, 3) and (0, 1)"),
        (npz(images=IMAGES, labels=ANSWERS[:, 0]), "labels (count, 1) in .*; got (2, 36, 36, 3) and (2,)"),
        (npz(images=IMAGES, labels=ANSWERS - 1), "labels of integers from 0 to 1 in "),
        (npz(images=IMAGES / 2, labels=ANSWERS), "images of integers from 0 to 255 in "),
    ],
)
def test_damaged_images_raise_value_error_with_name(tmp_path, content, message):
    (tmp_path / "images.npz").write_bytes(content)
    pattern = message.replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(ValueError, match=f"^RelationalGame expects .*{pattern}") as failed:
        read_images(tmp_path / "images.npz")
    assert "images.npz" in str(failed.value)


@pytest.mark.skipif(data_set("relational_games") is None, reason=f"{VARIABLE} has no relational_games")
@pytest.mark.parametrize("shapes", ["hexominoes", "stripes"])
def test_our_pieces_agree_with_the_published_images(shapes):
    """Every object on 2000 published images is one of ours. Frequencies, places and answers agree too."""
    real = RelationalGame(game="between", test_shapes=shapes, real=True)
    images, targets = real.sample_unseen(2000, Generator().manual_seed(0))
    boards = [objects_by_place(cells) for cells in images]
    assert [between(objects) for objects in boards] == targets.tolist()
    ours, _ = problems("between", shapes, 2000)
    drawn = [
        Counter(cell.tobytes() for o in found for cell in o.values()) for found in (boards, map(objects_by_place, ours))
    ]
    pieces = polyominoes(HEXOMINOES) if shapes == "hexominoes" else stripes()
    assert drawn[0].keys() <= {image.tobytes() for image in pieces.images.numpy()}
    looks = [
        Counter(form(np.frombuffer(c, np.float32).reshape(3, 12, 12)) for c in found.elements()) for found in drawn
    ]
    for mask in looks[0] | looks[1]:
        assert looks[0][mask] == pytest.approx(looks[1][mask], abs=7 * math.sqrt(looks[1][mask] + 1))
    for line in LINES:
        counts = [
            sum(tuple(objects) == line for objects in found) for found in (boards, list(map(objects_by_place, ours)))
        ]
        assert counts[0] == pytest.approx(counts[1], rel=0.5)
