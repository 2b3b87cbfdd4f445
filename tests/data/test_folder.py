"""A user's own folders: read as they are meant, or refused in one sentence that names the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedkin.data.folder import read_folder
from fedkin.errors import FedkinError


def image(path: Path, value: int | tuple[int, int, int] = 0, size: tuple[int, int] = (6, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("L" if isinstance(value, int) else "RGB", size, value).save(path)


def npz(path: Path, x: object, y: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, x=np.asarray(x), y=np.asarray(y))


def text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_class_folders_of_images_become_one_dataset(tmp_path: Path) -> None:
    image(tmp_path / "anna" / "dog" / "1.png", (255, 0, 0))
    image(tmp_path / "anna" / "cat" / "1.png", (0, 255, 0))
    image(tmp_path / "bert" / "dog" / "1.bmp", (0, 0, 255))
    data = read_folder(tmp_path)
    assert data.name == tmp_path.name
    assert data.x.shape == (3, 3, 4, 6)
    assert data.x.dtype == np.uint8
    assert data.classes == ("cat", "dog")
    assert [data.classes[y] for y in data.y] == ["cat", "dog", "dog"]
    assert data.owners == ("anna", "bert")
    assert data.owner is not None
    assert data.owner.tolist() == [0, 0, 1]
    assert data.x[1, :, 0, 0].tolist() == [255, 0, 0]
    assert data.mean == pytest.approx((1 / 3,) * 3)
    assert not data.is_test.any()


def test_images_stay_grey_only_if_all_are(tmp_path: Path) -> None:
    image(tmp_path / "a" / "0" / "1.png", 7)
    image(tmp_path / "b" / "1" / "1.png", 9)
    assert read_folder(tmp_path).x.shape == (2, 1, 4, 6)
    image(tmp_path / "b" / "1" / "2.png", (1, 2, 3))
    assert read_folder(tmp_path).x.shape == (3, 3, 4, 6)


def test_train_and_test_folders_mark_the_test_samples(tmp_path: Path) -> None:
    image(tmp_path / "a" / "train" / "0" / "1.png", 10)
    image(tmp_path / "a" / "test" / "0" / "1.png", 20)
    image(tmp_path / "b" / "1" / "1.png", 30)
    data = read_folder(tmp_path)
    assert data.x[data.is_test].ravel()[0] == 20
    assert data.is_test.sum() == 1
    assert data.mean == pytest.approx((20 / 255,)), "measured on the training samples 10 and 30 alone"


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    image(tmp_path / "a" / "train" / "1.png")
    image(tmp_path / "a" / "bus" / "1.png")
    data = read_folder(tmp_path)
    assert data.classes == ("bus", "train")
    assert not data.is_test.any()


def test_files_named_test_mark_the_test_samples(tmp_path: Path) -> None:
    npz(tmp_path / "a" / "train.npz", [[1.0]], [0])
    npz(tmp_path / "a" / "test.npz", [[2.0]], [0])
    data = read_folder(tmp_path)
    assert data.x[data.is_test].tolist() == [[2.0]]


def test_numbers_as_class_names_are_sorted_as_numbers(tmp_path: Path) -> None:
    npz(tmp_path / "a.npz", np.ones((3, 2)), [10, -1, 9])
    data = read_folder(tmp_path)
    assert data.classes == ("-1", "9", "10")
    assert data.y.tolist() == [2, 0, 1]


def test_labels_are_numbered_over_all_clients(tmp_path: Path) -> None:
    npz(tmp_path / "a.npz", np.ones((2, 2)), ["wolf", "bear"])
    npz(tmp_path / "b.npz", np.ones((1, 2)), ["lynx"])
    data = read_folder(tmp_path)
    assert data.classes == ("bear", "lynx", "wolf")
    assert data.y.tolist() == [2, 0, 1]


def test_whole_numbers_as_floats_are_classes(tmp_path: Path) -> None:
    npz(tmp_path / "a.npz", np.ones((2, 2)), np.array([[3.0], [1.0]]))
    assert read_folder(tmp_path).classes == ("1", "3")


def test_features_are_float32_with_one_mean_and_std_each(tmp_path: Path) -> None:
    npz(tmp_path / "a.npz", np.array([[1, 5], [3, 5]]), [0, 1])
    data = read_folder(tmp_path)
    assert data.x.dtype == np.float32
    assert data.mean == (2.0, 5.0)
    assert data.std == (1.0, 1.0), "a feature that never changes is divided by one, not by zero"


def test_windows_have_one_mean_per_channel(tmp_path: Path) -> None:
    npz(tmp_path / "a.npz", np.arange(24.0).reshape(2, 3, 4), [0, 1])
    data = read_folder(tmp_path)
    assert data.mean == pytest.approx(np.arange(24).reshape(2, 3, 4).mean(axis=(0, 2)))
    assert data.std == pytest.approx(np.arange(24).reshape(2, 3, 4).std(axis=(0, 2)))


def test_bytes_in_four_dimensions_stay_images(tmp_path: Path) -> None:
    npz(tmp_path / "a.npz", np.full((2, 1, 4, 4), 51, np.uint8), [0, 1])
    data = read_folder(tmp_path)
    assert data.x.dtype == np.uint8
    assert data.mean == pytest.approx((0.2,))


@pytest.mark.parametrize(
    ("header", "rows"),
    [("label,p,q", "yes,1,2\nno,3,4"), ("p,Y,q", "1,yes,2\n3,no,4"), ("p,q,kind", "1,2,yes\n3,4,no")],
)
def test_the_label_column_is_found_by_name_or_comes_last(tmp_path: Path, header: str, rows: str) -> None:
    text(tmp_path / "a.csv", f"{header}\n{rows}\n\n")
    data = read_folder(tmp_path)
    assert data.x.tolist() == [[1, 2], [3, 4]]
    assert [data.classes[y] for y in data.y] == ["yes", "no"]


def test_a_size_resizes_images(tmp_path: Path) -> None:
    image(tmp_path / "a" / "0" / "1.png", 1, (8, 8))
    image(tmp_path / "a" / "0" / "2.jpg", 1, (9, 5))
    assert read_folder(tmp_path, size=4).x.shape == (2, 1, 4, 4)


def test_hidden_files_and_notes_are_passed_over(tmp_path: Path) -> None:
    image(tmp_path / "a" / "0" / "1.png")
    text(tmp_path / "README.md", "notes")
    text(tmp_path / "a" / ".DS_Store", "")
    text(tmp_path / "a" / "0" / ".thumbs", "")
    assert len(read_folder(tmp_path)) == 1


def refused(path: Path, *words: str) -> None:
    with pytest.raises(FedkinError) as caught:
        read_folder(path)
    for word in words:
        assert word in str(caught.value)


def test_different_sizes_are_refused_with_two_files_and_their_sizes(tmp_path: Path) -> None:
    image(tmp_path / "a" / "0" / "1.png", 1, (8, 8))
    image(tmp_path / "b" / "0" / "2.png", 1, (9, 5))
    refused(tmp_path, "1.png", "8 x 8", "2.png", "9 x 5")


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_values_that_are_not_finite_are_refused_with_file_and_client(tmp_path: Path, value: float) -> None:
    npz(tmp_path / "good.npz", [[1.0, 2.0]], [0])
    npz(tmp_path / "ill" / "data.npz", [[1.0, 2.0], [value, 2.0]], [0, 1])
    refused(tmp_path, "client ill", "data.npz", "sample 2")


def test_nan_in_a_csv_is_refused(tmp_path: Path) -> None:
    text(tmp_path / "a.csv", "p,label\n1,x\nnan,y\n")
    refused(tmp_path, "a.csv", "NaN")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", ["empty"]),
        ("1,2\n3,4\n", ["header"]),
        ("p,label\n1,x\nabc,y\n", ["'abc'", "line 3", "column p"]),
        ("p,label\n,x\n", ["''", "line 2"]),
        ("p,label\n1,x,7\n", ["3 cells", "line 2"]),
        ("p,label\n1,\n", ["no label", "line 2"]),
        ("p,label\n", ["client a", "no samples"]),
    ],
)
def test_a_faulty_csv_is_refused_with_the_place(tmp_path: Path, content: str, words: list[str]) -> None:
    text(tmp_path / "a.csv", content)
    refused(tmp_path, "a.csv", *words)


def test_other_columns_are_refused(tmp_path: Path) -> None:
    text(tmp_path / "a.csv", "p,label\n1,x\n")
    text(tmp_path / "b.csv", "q,label\n1,x\n")
    refused(tmp_path, "a.csv", "b.csv", "columns")


def test_other_shapes_are_refused(tmp_path: Path) -> None:
    npz(tmp_path / "a.npz", np.ones((1, 2)), [0])
    npz(tmp_path / "b.npz", np.ones((1, 3)), [0])
    refused(tmp_path, "a.npz", "(2,)", "b.npz", "(3,)")


@pytest.mark.parametrize(
    ("x", "y", "word"),
    [
        (np.ones(3), [0, 1, 2], "(3,)"),
        (np.ones((3, 2)), [0, 1], "(2,)"),
        (np.ones((2, 2)), np.eye(2), "(2, 2)"),
        (np.ones((1, 2)), [0.5], "whole"),
        (np.array([["a", "b"]]), [0], "numbers"),
    ],
)
def test_arrays_of_the_wrong_form_are_refused(tmp_path: Path, x: object, y: object, word: str) -> None:
    npz(tmp_path / "a.npz", x, y)
    refused(tmp_path, "a.npz", word)


def test_an_npz_without_x_and_y_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", data=np.ones(3))
    refused(tmp_path, "holds data", "x and y expected")


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.array([object()]), y=np.array([0]))
    refused(tmp_path, "a.npz", "plain arrays")


def test_an_unreadable_image_is_named(tmp_path: Path) -> None:
    text(tmp_path / "a" / "0" / "broken.png", "no image")
    refused(tmp_path, "broken.png", "not a readable image")


def test_an_image_that_is_cut_short_is_named(tmp_path: Path) -> None:
    image(tmp_path / "a" / "0" / "short.bmp", (1, 2, 3), (40, 40))
    whole = (tmp_path / "a" / "0" / "short.bmp").read_bytes()
    (tmp_path / "a" / "0" / "short.bmp").write_bytes(whole[:600])
    refused(tmp_path, "short.bmp", "not a readable image")


def test_sixteen_bit_images_are_refused_rather_than_clipped(tmp_path: Path) -> None:
    (tmp_path / "a" / "0").mkdir(parents=True)
    Image.fromarray(np.full((4, 4), 40_000, np.uint16)).save(tmp_path / "a" / "0" / "deep.png")
    refused(tmp_path, "deep.png", "8 bits")


def test_other_files_in_a_class_folder_are_refused(tmp_path: Path) -> None:
    image(tmp_path / "a" / "0" / "1.png")
    text(tmp_path / "a" / "0" / "2.webp", "")
    refused(tmp_path, "2.webp")


def test_images_outside_class_folders_are_refused(tmp_path: Path) -> None:
    image(tmp_path / "a" / "1.png")
    refused(tmp_path, "no class folder")


def test_an_empty_client_is_named(tmp_path: Path) -> None:
    image(tmp_path / "a" / "0" / "1.png")
    (tmp_path / "nobody").mkdir()
    refused(tmp_path, "client nobody", "no samples")


def test_mixed_kinds_are_refused_with_two_examples(tmp_path: Path) -> None:
    image(tmp_path / "a" / "0" / "1.png")
    npz(tmp_path / "b.npz", np.ones((1, 2)), [0])
    refused(tmp_path, "images", "b.npz", "one kind")


def test_two_clients_of_one_name_are_refused(tmp_path: Path) -> None:
    npz(tmp_path / "a.npz", np.ones((1, 2)), [0])
    npz(tmp_path / "a" / "x.npz", np.ones((1, 2)), [0])
    refused(tmp_path, "both stand for client a")


def test_a_folder_that_is_not_there_or_has_no_clients_is_told(tmp_path: Path) -> None:
    refused(tmp_path / "none", "not a folder")
    refused(tmp_path, "no clients")
