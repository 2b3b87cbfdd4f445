"""The folder of a federation: its terms, a Flower app, certificates and keys.

    settings.toml      the terms
    federation_app.py  the Flower app, with pyproject.toml
    server/            certificate and keys of the server, and what Flower keeps
    clients/NAME/      all that a client needs: its key, the server's certificate, where the server is
    runs/              a run folder for each run

`clients/NAME` is for that client alone: copy it to its machine. Private files can be read by their owner only.
"""

from __future__ import annotations

import ipaddress
import json
import os
import secrets
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedkin.deploy.terms import FILE, PUBLIC, Terms
from fedkin.errors import FedkinError
from fedkin.runs.files import make_folder
from fedkin.runs.folder import refuse_full

YEARS = 10
APP = "federation_app.py"
CA, KEY, PUB, CLIENT = "ca.crt", "node.key", "node.pub", "client.toml"
LOOPBACK = "127.0.0.1"


def make(folder: Path, terms: Terms, method_file: Path | None = None, public: Path | None = None) -> None:
    """Write all that a federation needs to a new folder."""
    refuse_full(folder)
    for part in (folder, folder / "server", folder / "runs", folder / "clients"):
        make_folder(part)
    for part in (folder / "server", folder / "clients"):
        part.chmod(0o700)
    (folder / FILE).write_text(terms.to_toml(), "utf-8")
    (folder / "pyproject.toml").write_text(_pyproject(folder), "utf-8")
    (folder / APP).write_text(_app(), "utf-8")
    (folder / ".gitignore").write_text("server/\nclients/\nruns/\n.flwr/\n", "utf-8")
    if method_file:
        shutil.copy(method_file, folder / method_file.name)
    certificate = certify(folder / "server", [terms.server.host, "localhost", LOOPBACK])
    secret(folder / "server" / "secret", secrets.token_bytes(48))
    for name in terms.clients:
        home = folder / "clients" / name
        make_folder(home)
        home.chmod(0o700)
        _node_key(home)
        (home / CA).write_bytes(certificate)
        about = {"name": name, "server": f"{terms.server.host}:{terms.server.port}"}
        (home / CLIENT).write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in about.items()), "utf-8")
        if public:
            shutil.copy(public, home / PUBLIC)
    if public:
        shutil.copy(public, folder / PUBLIC)


def _app() -> str:
    return (
        '"""The Flower app of this federation: all of it is in fedkin."""\n\n'
        "from fedkin.deploy.apps import client_app, server_app\n\n"
        "client = client_app(__file__)\nserver = server_app(__file__)\n"
    )


def _pyproject(folder: Path) -> str:
    return f"""\
[project]
name = "federation"
version = "1.0.0"
description = "A federation of fedkin"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedkin"
fab-include = ["*.py"]

[tool.flwr.app.components]
serverapp = "{Path(APP).stem}:server"
clientapp = "{Path(APP).stem}:client"

[tool.flwr.app.config]
folder = {json.dumps(str(folder.resolve()))}
run = "run"
"""


def secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    path.chmod(0o600)


def _private_bytes(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _node_key(home: Path) -> None:
    """The key by which a client is known."""
    key = ec.generate_private_key(ec.SECP384R1())
    secret(home / KEY, _private_bytes(key, serialization.PrivateFormat.OpenSSH))
    (home / PUB).write_bytes(_public_line(key.public_key()))


def _public_line(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH) + b"\n"


def certify(server: Path, hosts: Sequence[str]) -> bytes:
    """A certificate for the server by an authority made for it alone, whose key is thrown away; that of the authority.

    Nobody can make another certificate that these clients would trust.
    """
    authority_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedkin federation")])
    now = datetime.now(UTC)

    def builder(name: x509.Name, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(authority_name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=365 * YEARS))
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        )

    def usage(sign: bool) -> x509.KeyUsage:
        return x509.KeyUsage(not sign, False, False, False, False, sign, sign, False, False)

    authority = (
        builder(authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(sign=True), critical=True)
        .sign(authority_key, hashes.SHA384())
    )
    names = [x509.SubjectAlternativeName([_general_name(host) for host in dict.fromkeys(hosts)])]
    certificate = (
        builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])]), key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(sign=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names[0], critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    secret(server / "server.key", _private_bytes(key, serialization.PrivateFormat.PKCS8))
    (server / "server.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    content = authority.public_bytes(serialization.Encoding.PEM)
    (server / CA).write_bytes(content)
    return content


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def public_keys(folder: Path) -> dict[bytes, str]:
    """Clients' public keys, in Flower's form, and their names."""
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    keys = {}
    for name in Terms.read(folder).clients:
        path = folder / "clients" / name / PUB
        try:
            key = serialization.load_ssh_public_key(path.read_bytes())
        except (OSError, ValueError) as error:
            raise FedkinError(f"{path} is not the public key of a client: {error}") from None
        assert isinstance(key, ec.EllipticCurvePublicKey)
        keys[public_key_to_bytes(key)] = name
    return keys


@dataclass(frozen=True)
class ClientFolder:
    """What a client has of a federation."""

    path: Path
    name: str
    server: str

    @staticmethod
    def find(folder: Path, name: str | None) -> ClientFolder:
        """In the federation's own folder, or the copy that was carried to the client's machine."""
        path = folder / "clients" / name if name and (folder / "clients").is_dir() else folder
        try:
            about = tomllib.loads((path / CLIENT).read_text("utf-8"))
            found = ClientFolder(path.resolve(), about["name"], about["server"])
        except (OSError, KeyError, tomllib.TOMLDecodeError):
            raise FedkinError(
                f"{path} has no {CLIENT}: a federation's folder and --name, or a client's own part of it, expected"
            ) from None
        if name and name != found.name:
            raise FedkinError(f"{path} belongs to {found.name}, not to {name}")
        return found

    def file(self, name: str) -> Path:
        """One of its files."""
        return self.path / name
