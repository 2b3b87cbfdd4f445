"""TensorBoard logs of a run, beside its other files: `tensorboard --logdir RUN`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedkin.errors import FedkinError
from fedkin.result import Round
from fedkin.scores import UNION
from fedkin.simulate import Watch

FOLDER = "tensorboard"


@contextmanager
def logged(run: Path, last: int = 0) -> Iterator[Watch]:
    """A watcher that writes a log; what an earlier log has after round `last` is forgotten."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise FedkinError("--tensorboard needs another package: pip install 'fedkin[tensorboard]'") from None

    with SummaryWriter(str(run / FOLDER), purge_step=last + 1 if last else None) as writer:

        def watch(happened: Round, seconds: float) -> None:
            at = happened.round
            for score in happened.scores:
                of = f"{score.model}_{'union' if score.data == UNION else 'own'}".replace(" ", "_")
                writer.add_scalar(f"accuracy/{of}", score.headline, at)
                if len(score.clients) > 1:
                    writer.add_histogram(f"clients/{of}", [a for a in score.clients if a == a], at)
            if happened.train_loss is not None:
                writer.add_scalar("train_loss", happened.train_loss, at)
            writer.add_scalar("bytes/up", happened.bytes_up, at)
            writer.add_scalar("bytes/down", happened.bytes_down, at)
            writer.add_scalar("seconds", seconds, at)
            writer.flush()

        yield watch
