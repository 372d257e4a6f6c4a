"""What runs first in the sandbox, as `python -c`: takes the program from standard input, sets the limits, runs it.

Imports next to nothing: each module here is paid for with every run. Arguments: the program's size in bytes, then what
`resource.setrlimit` takes, as NAME=NUMBER.
"""

import os
import resource
import sys

READY = b"\x06"  # first byte of standard output: everything before is set up, what follows is the program's


def take_program(size_bytes: int) -> str:
    """The program in front of its own standard input, and no byte more."""
    program = b""
    while len(program) < size_bytes:
        chunk = os.read(0, size_bytes - len(program))
        if not chunk:
            sys.exit("the program was cut off")
        program += chunk
    return program.decode()


def set_limits(named: list[str]) -> None:
    """Set each limit for good: without a privilege, a hard limit is never raised again."""
    for limit in named:
        name, _, number = limit.partition("=")
        hard = int(number)
        extra = 1 if name == "RLIMIT_CPU" else 0  # SIGXCPU first; SIGKILL a second later if it was ignored
        resource.setrlimit(getattr(resource, name), (hard, hard + extra))


def run(program: str) -> None:
    """Run it as `__main__`. What it raises is printed without this file's frames."""
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    sys.argv = ["program.py"]
    os.write(1, READY)
    try:
        exec(compile(program, "program.py", "exec"), module.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        sys.stdout.flush()
        sys.__excepthook__(type(error), error.with_traceback(trace.tb_next if trace else None), None)
        os._exit(1)


if __name__ == "__main__":
    source = take_program(int(sys.argv[1]))
    set_limits(sys.argv[2:])
    os.environ.clear()
    run(source)
