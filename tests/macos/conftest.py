"""Define the fixtures that run corral on a real Mac."""

import json
import os
import subprocess
import sys

import pytest

MAIN = "import sys; from corral.cli import main; sys.exit(main())"


class Mac:
    """Runs code in two ways: with corral, started as a client would start it, and without corral."""

    def __init__(self, place):
        self.place = os.path.realpath(place)

    def start(self, *command, flags=(), **options):
        return subprocess.Popen(
            [sys.executable, "-c", MAIN, "run", *flags, "--", *command],
            **{"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )  # fmt: skip

    def run(self, *command, flags=(), input=b"", **options):
        process = self.start(*command, flags=flags, **options)
        out, err = process.communicate(input, timeout=60)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def inside(self, code, *arguments, flags=()):
        done = self.run(sys.executable, "-c", script(code), *arguments, flags=flags)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    def outside(self, code, *arguments):
        """Run code without the sandbox, to show that an act fails only because of the sandbox."""
        command = [sys.executable, "-c", script(code), *arguments]
        return json.loads(
            subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
        )


def script(code):
    """Return a script that runs `code` and prints the `answer` that the code sets, or the errno of
    an OSError.
    """
    lines = "\n".join(f"    {line}" for line in code.splitlines())
    return f"import json, os, sys\ntry:\n{lines}\nexcept OSError as error:\n    answer = error.errno\nprint(json.dumps(answer))"


@pytest.fixture
def mac(tmp_path):
    return Mac(tmp_path)
