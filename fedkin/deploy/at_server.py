"""The server's half: the loop of a simulation, with letters to real clients in place of an engine."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from pathlib import Path

from fedkin import api
from fedkin.deploy.checks import Replies, most_bytes
from fedkin.deploy.post import Carrier, Post
from fedkin.deploy.remote import RealTime, Remote, WallClock, check
from fedkin.deploy.terms import PUBLIC, Terms, read_public
from fedkin.errors import FedkinError
from fedkin.late import WAIT
from fedkin.result import Models, Result
from fedkin.runs.folder import CONFIG, TERMS, RunFolder
from fedkin.schedule import Stragglers, schedule
from fedkin.setup import Setup
from fedkin.simulate import Simulation, one_thread, play


def serve(
    carrier: Carrier,
    keys: Mapping[bytes, str],
    folder: Path,
    out: Path,
    base: Path | None = None,
) -> Result:
    """Run a federation to its last round, or go on with the run in folder `out`.

    `keys` are clients' public keys and names: who holds a key is that client, whatever it says of itself.
    """
    terms = Terms.read(folder)
    public = folder / PUBLIC
    setup = terms.setup(base or folder, read_public(public if public.exists() else None, terms.samples))
    run = _run_folder(out, setup, terms)
    replies = Replies(setup)
    about = {"terms": run.about[TERMS], "run": run.about["run"]}
    by_key = {key: terms.clients.index(name) for key, name in keys.items() if name in terms.clients}
    if len(by_key) < len(terms.clients):
        raise FedkinError(f"there are keys for {len(by_key)} of the {len(terms.clients)} clients in {folder}")

    def note(client: int, event: str, why: str) -> None:
        run.note(event, why, terms.clients[client])
        print(f"{terms.clients[client]}: {event}: {why[:500]}", file=sys.stderr, flush=True)

    post = Post(carrier, by_key, about, terms.server.patience, check(replies), note, most_bytes(setup))
    remote = Remote(post, replies)
    with one_thread():
        clock = _clock(setup, remote)
        simulation = Simulation(setup, remote, out, clock)
        if clock:
            clock.private = lambda client: simulation.clients.private.get(client, {})
        history, seconds = play(simulation, run)
        remote.map("finish", [([job],) for job in simulation.clients.served(simulation.state)])
        result = simulation.result(Models.none(), history, seconds, run)
    run.finish(None, result.summary())
    return result


def _run_folder(out: Path, setup: Setup, terms: Terms) -> RunFolder:
    text = terms.model_dump_json()
    if not (out / CONFIG).exists():
        about = {"run": secrets.token_hex(8), TERMS: text}
        return RunFolder.create(out, setup.config, {**api.describe(setup), **about})
    run = RunFolder.open(out)
    if run.about.get(TERMS) != text:
        raise FedkinError(f"{out} holds a run with other terms than settings.toml has now: start a new one")
    return run


def _clock(setup: Setup, remote: Remote) -> WallClock | None:
    """Real time; None where a calendar says who is late, as in a simulation."""
    config = setup.config
    plan = schedule(config.schedule, len(setup.federation), config.seed)
    if isinstance(plan, Stragglers):
        return None
    real = RealTime(plan.clients, plan.seed, plan.first, plan.window)
    return WallClock(real, config.join, config.late == WAIT, remote)
