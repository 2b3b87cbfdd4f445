"""Downloads from a server on this machine: whole and right, or refused without a trace."""

from __future__ import annotations

import gzip
import hashlib
import io
import socket
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedkin.data import catalogue, fetch
from fedkin.data.fetch import Download
from fedkin.errors import FedkinError

FILES = {"/a.bin": b"all of it" * 1000}


class Server(ThreadingHTTPServer):
    files: dict[str, bytes]
    asked: list[str]
    promised_extra = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        body = self.server.files.get(self.path)
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body) + self.server.promised_extra))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server(("127.0.0.1", 0), Handler)
    running.files, running.asked = dict(FILES), []
    thread = threading.Thread(target=running.serve_forever, args=(0.01,))
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        for name, content in members.items():
            bundle.writestr(name, content)
    return buffer.getvalue()


def tarred(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as bundle:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            bundle.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content).hexdigest()}"


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_a_file_with_the_right_checksum_arrives_whole(server: Server, tmp_path: Path, algorithm: str) -> None:
    digest = hashlib.new(algorithm, FILES["/a.bin"]).hexdigest()
    fetch.download(f"{server.address}/a.bin", tmp_path / "deep" / "a.bin", f"{algorithm}:{digest}")
    assert (tmp_path / "deep" / "a.bin").read_bytes() == FILES["/a.bin"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.bin"]


def test_a_wrong_checksum_is_refused_and_nothing_is_left_behind(server: Server, tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match=r"has md5 .* but 0123 is published"):
        fetch.download(f"{server.address}/a.bin", tmp_path / "a.bin", "md5:0123")
    assert list(tmp_path.iterdir()) == []


def test_without_a_published_checksum_the_one_it_got_is_told(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fetch.download(f"{server.address}/a.bin", tmp_path / "a.bin", None)
    assert hashlib.sha256(FILES["/a.bin"]).hexdigest() in capsys.readouterr().err


def test_a_file_the_server_does_not_have_is_told_with_its_code(server: Server, tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match="404"):
        fetch.download(f"{server.address}/none.bin", tmp_path / "none.bin", None)
    assert list(tmp_path.iterdir()) == []


def test_a_connection_that_ends_early_is_told_and_nothing_is_left_behind(server: Server, tmp_path: Path) -> None:
    server.promised_extra = 10
    with pytest.raises(FedkinError, match="could not be downloaded"):
        fetch.download(f"{server.address}/a.bin", tmp_path / "a.bin", None)
    assert list(tmp_path.iterdir()) == []


def test_a_refused_connection_is_told_at_once(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(FedkinError, match="refused"):
        fetch.download(f"http://127.0.0.1:{port}/a.bin", tmp_path / "a.bin", None)


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_an_archive_is_unpacked_into_what_is_there_and_not_kept(
    server: Server, tmp_path: Path, pack: Callable[[dict[str, bytes]], bytes]
) -> None:
    (tmp_path / "set" / "train").mkdir(parents=True)
    (tmp_path / "set" / "train" / "mine.txt").write_text("stays")
    server.files["/set.pack"] = pack({"train/1.txt": b"one", "test/2.txt": b"two"})
    item = Download(f"{server.address}/set.pack", "set", md5(server.files["/set.pack"]), unpack=True)
    fetch.fetch(item, tmp_path)
    found = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert found == {"set/train/mine.txt", "set/train/1.txt", "set/test/2.txt"}


def test_an_archive_inside_an_archive_is_unpacked_as_well(tmp_path: Path) -> None:
    (tmp_path / "outer.zip").write_bytes(zipped({"inner.zip": zipped({"data/1.txt": b"one"}), "names": b""}))
    fetch.unpack(tmp_path / "outer.zip", tmp_path)
    assert (tmp_path / "data" / "1.txt").read_bytes() == b"one"
    assert not (tmp_path / "inner.zip").exists()


@pytest.mark.parametrize("pack", [zipped, tarred])
@pytest.mark.parametrize("member", ["../outside.txt", "good/../../outside.txt"])
def test_a_member_that_points_outside_is_refused_and_nothing_is_unpacked(
    tmp_path: Path, pack: Callable[[dict[str, bytes]], bytes], member: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "bad.pack").write_bytes(pack({"fine.txt": b"", member: b"evil"}))
    with pytest.raises(FedkinError, match=r"bad\.pack"):
        fetch.unpack(tmp_path / "bad.pack", folder)
    assert list(folder.iterdir()) == []
    assert not list(tmp_path.rglob("outside.txt"))


def test_an_absolute_path_in_a_zip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.zip").write_bytes(zipped({"/outside.txt": b"evil"}))
    with pytest.raises(FedkinError, match="points outside"):
        fetch.unpack(tmp_path / "bad.zip", tmp_path)


def test_a_link_out_of_a_tar_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w") as bundle:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "../../secret"
        bundle.addfile(link)
    with pytest.raises(FedkinError, match="not safe"):
        fetch.unpack(tmp_path / "bad.tar", tmp_path)


def test_a_damaged_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "damaged.tar.gz").write_bytes(tarred({"1.txt": b"one" * 5000})[:-40])
    with pytest.raises(FedkinError, match=r"damaged\.tar\.gz cannot be unpacked"):
        fetch.unpack(tmp_path / "damaged.tar.gz", tmp_path)


def idx(values: bytes, *shape: int) -> bytes:
    return gzip.compress(bytes([0, 0, 8, len(shape)]) + b"".join(n.to_bytes(4, "big") for n in shape) + values)


@pytest.fixture
def mnist(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server that has an MNIST of three digits, and a catalogue that knows it."""
    known = catalogue.entry("mnist")
    images = {
        name: idx(bytes(n * 784), n, 28, 28) for name, n in [("train", 2), ("t10k", 1)]
    }  # fmt: skip
    labels = {name: idx(bytes(range(n)), n) for name, n in [("train", 2), ("t10k", 1)]}
    server.files = {f"/{name}-images-idx3-ubyte.gz": body for name, body in images.items()}
    server.files |= {f"/{name}-labels-idx1-ubyte.gz": body for name, body in labels.items()}
    items = tuple(Download(server.address + p, "mnist", md5(body)) for p, body in server.files.items())
    part = replace(known.parts[0], downloads=items)
    monkeypatch.setitem(catalogue._ENTRIES, "mnist", replace(known, parts=(part,)))
    return server


def test_loading_downloads_what_is_missing_and_nothing_else(mnist: Server, tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    present = "train-images-idx3-ubyte"
    (tmp_path / "mnist" / present).write_bytes(gzip.decompress(mnist.files[f"/{present}.gz"]))
    assert not catalogue.is_ready("mnist", tmp_path)
    assert len(catalogue.load("mnist", tmp_path)) == 3
    assert catalogue.is_ready("mnist", tmp_path)
    assert sorted(mnist.asked) == sorted(set(mnist.files) - {f"/{present}.gz"})


def test_prepare_does_nothing_when_all_is_there(mnist: Server, tmp_path: Path) -> None:
    catalogue.prepare("mnist", tmp_path)
    mnist.asked.clear()
    catalogue.prepare("mnist", tmp_path)
    assert mnist.asked == []


def test_a_failed_download_says_which_files_belong_where_and_who_has_them(mnist: Server, tmp_path: Path) -> None:
    mnist.files.pop("/t10k-labels-idx1-ubyte.gz")
    with pytest.raises(FedkinError) as caught:
        catalogue.load("mnist", tmp_path)
    message = str(caught.value)
    assert "lacks t10k-labels-idx1-ubyte in" in message
    assert str(tmp_path / "mnist") in message
    assert "http://yann.lecun.com/exdb/mnist/" in message
    assert "404" in message


def test_without_leave_to_download_no_server_is_asked(mnist: Server, tmp_path: Path) -> None:
    with pytest.raises(FedkinError, match="not allowed"):
        catalogue.load("mnist", tmp_path, download=False)
    assert mnist.asked == []


def test_a_folder_that_cannot_be_written_is_an_error_in_one_sentence(mnist: Server, tmp_path: Path) -> None:
    (tmp_path / "mnist").write_text("a file where the folder should be")
    with pytest.raises(FedkinError, match="lacks"):
        catalogue.prepare("mnist", tmp_path)


@pytest.mark.parametrize(
    ("name", "advice"),
    [("femnist", r"all_data_\*\.json"), ("pacs", "DOMAIN/CLASS"), ("digits-domains", "mnist_m")],
)
def test_what_has_no_direct_link_is_told_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, advice: str
) -> None:
    monkeypatch.setattr(fetch, "fetch", lambda *_: pytest.fail("downloaded in vain"))
    with pytest.raises(FedkinError, match=advice):
        catalogue.load(name, tmp_path)
