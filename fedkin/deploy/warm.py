"""Works for a node without starting anew for every message.

Flower starts a program for each message, which then loads PyTorch: seconds, where the work itself may take a hundredth
of that. This program stands where `flower-superexec` does, asks for work as that does, and has it done by copies of
itself, in which everything is loaded already. Without it a federation works just the same, only slower.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from pathlib import Path

from flwr.supercore.constant import TaskType
from flwr.supercore.superexec import run_superexec
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult
from flwr.supernode.runtime.run_clientapp import run_clientapp

from fedkin import methods
from fedkin.deploy import mail


class Copies(SubprocessExecutor):
    """Has every task done by a copy of this process."""

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start a copy on a client's task; anything else goes the usual way."""
        if spec.task_type != TaskType.CLIENT_APP:
            return super().launch(spec)
        if os.fork() == 0:
            _work(spec)
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Take note of copies that have ended."""
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def _work(spec: ExecutionSpec) -> None:
    """What a copy does; it never returns."""
    code = 1
    try:
        for kind in (signal.SIGINT, signal.SIGTERM):
            signal.signal(kind, signal.SIG_DFL)
        certificates = spec.root_certificates_path
        run_clientapp(
            runtime_api_address=spec.runtime_api_address,
            token=spec.token,
            insecure=spec.insecure,
            certificates=Path(certificates).read_bytes() if certificates else None,
        )
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Ask for work until the process that started us is gone."""
    parser = argparse.ArgumentParser()
    for name in ("--runtime-api-address", "--superexec-auth-secret-file", "--parent-pid"):
        parser.add_argument(name, required=True)
    given = parser.parse_args()
    setattr(run_superexec, "get_executor", lambda *_, **__: Copies())  # noqa: B010 (it is not ours to declare)
    mail.hurry()
    methods.registry()
    run_superexec.run_superexec(
        runtime_api_address=given.runtime_api_address,
        insecure=True,
        superexec_auth_secret=Path(given.superexec_auth_secret_file).read_bytes(),
        parent_pid=int(given.parent_pid),
    )


if __name__ == "__main__":
    main()
