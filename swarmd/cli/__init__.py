"""The command line: its commands, how one is run, and how errors are shown.

- Each command has a module, which is imported only when the command is used, so that `swarmd --help` stays quick. No
  help text loads torch, hivemind or web3.
- A deliberate error is two lines on stderr, what is wrong and what to do, and the exit code of its class.
- A wrong command line is explained with what was given and the form that the command takes.
"""

import difflib
import errno
import io
import os
import re
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, NamedTuple, TextIO

import typer
from typer.core import TyperGroup
from typer.main import get_command

from swarmd import __version__
from swarmd.errors import ExitCode, SwarmdError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errno values of a write on a full disk
KEY = re.compile(r"[0-9a-fA-F]{64}")  # a private key in hex


class CommandHelp(NamedTuple):
    """Help text of a command, with an example command line. The code is in the module of the command's name, or in
    `module`: a function of its name, or a Typer called `app`."""

    summary: str
    example: str
    module: str = ""


GROUPS = {
    "Run, make and join": {
        "local": CommandHelp("Run a small swarm of real nodes on this machine.", "swarmd local --rounds 4 --nodes 3"),
        "init": CommandHelp("Make a node, asking for its settings.", "swarmd init --dir my-node"),
        "swarm": CommandHelp("Create and manage a swarm.", 'swarmd swarm new "my swarm" --dir my-node'),
        "join": CommandHelp("Join a swarm by its manifest.", "swarmd join swarm.toml --dir my-node"),
        "run": CommandHelp("Run a node.", "swarmd run --config my-node/config.toml"),
        "stop": CommandHelp(
            "Stop a node, at once or as soon as that costs no round.", "swarmd stop my-node --when-safe"
        ),
        "service": CommandHelp(
            "Install a node as a systemd service, or remove it.",
            "sudo swarmd service install --config my-node/config.toml",
            "run",
        ),
    },
    "Look at a node": {
        "status": CommandHelp(
            "Show a node's state: process, network, training, round.", "swarmd status my-node --watch"
        ),
        "explain": CommandHelp("Explain a round or a gap.", "swarmd explain my-node 12"),
        "doctor": CommandHelp("Find faults of a node or its machine, with fixes.", "swarmd doctor my-node"),
        "dashboard": CommandHelp("Show a node and its swarm in a browser.", "swarmd dashboard my-node --open"),
        "report": CommandHelp("Draw reward and accuracy by round.", "swarmd report my-node --out report.png"),
        "leaderboard": CommandHelp(
            "Add up a swarm's standings from its contract or signed reports.",
            "swarmd leaderboard my-node --top 10",
        ),
        "timeline": CommandHelp(
            "Show what happened between several nodes, and what became of a node's rollouts.",
            "swarmd timeline alice bob --of bob --round 12",
        ),
        "notify": CommandHelp("Send a test notification.", "swarmd notify --config my-node/config.toml"),
    },
    "Event log": {
        "replay": CommandHelp(
            "Replay a node's event log: show, step, verify, compare charts.", "swarmd replay my-node --verify"
        ),
        "log": CommandHelp("Print, follow, verify, export or compact an event log.", "swarmd log tail my-node -f"),
        "bundle": CommandHelp(
            "Make a support archive without secrets, or open one and replay it.",
            "swarmd bundle my-node --out bundle.tar.gz",
        ),
        "chart": CommandHelp("List the statecharts or draw one.", "swarmd chart round"),
        "sim": CommandHelp("Simulate swarms with faults, and check every commit.", "swarmd sim --seeds 20"),
    },
    "Configuration and models": {
        "config": CommandHelp(
            "Check a configuration file or show the settings in force.", "swarmd config check my-node/config.toml"
        ),
        "model": CommandHelp("Get, build, fetch or serve a model, or see which fit.", "swarmd model serve my-node"),
        "chat": CommandHelp("Chat with a model or a node's newest checkpoint.", "swarmd chat my-node"),
        "reference-server": CommandHelp(
            "Compute reference log-probabilities for trainers, over HTTP.",
            "swarmd reference-server --listen 127.0.0.1:59875",
            "servers",
        ),
    },
    "Keys and accounts": {
        "identity": CommandHelp(
            "Make, show, back up, restore, check or import a node's identity.",
            "swarmd identity show my-node/identity.key",
        ),
        "account": CommandHelp(
            "Make the account that submits to a chain, show or import one.", "swarmd account new my-node/account.json"
        ),
        "signer": CommandHelp(
            "Submit for many nodes with one account, over HTTP.",
            "swarmd signer --config my-node/config.toml",
            "servers",
        ),
    },
    "Backup and return": {
        "backup": CommandHelp(
            "Back up a node: log, checkpoint, keys; or check a backup.", "swarmd backup make my-node my-node.tar.gz"
        ),
        "restore": CommandHelp("Restore a node from a backup.", "swarmd restore my-node.tar.gz new-node", "backup"),
        "fork": CommandHelp(
            "Make a node with a new identity from another's log.",
            "swarmd fork my-node new-node --round 12",
            "backup",
        ),
    },
}
VERBS = {name: verb for verbs in GROUPS.values() for name, verb in verbs.items()}


def load_command(name: str) -> Any:
    """Import a command's module and return its Typer command."""
    verb, function = VERBS[name], name.replace("-", "_")
    module = import_module(f"swarmd.cli.{verb.module or function}")
    target = getattr(module, function, None) or module.app
    if not isinstance(target, typer.Typer):
        app = typer.Typer(add_completion=False)
        app.command(name)(target)
        target = app
    command = get_command(target)
    command.name = name
    allow_unreadable_paths(command)
    command.epilog = f"For example: {verb.example}"
    return command


def allow_unreadable_paths(command: Any) -> None:
    """Let the command itself report an unreadable path, with the reason; the parser would only call it a wrong
    argument."""
    for inner in getattr(command, "commands", {}).values():
        allow_unreadable_paths(inner)
    for parameter in command.params:
        parameter.type_descriptor.parameter_info.readable = False


class LazyCommandGroup(TyperGroup):
    """A group that knows a summary of each command, and imports a command when it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in VERBS:
            self.commands[args[0]] = load_command(args[0])
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a placeholder with the summary for this group's help, the real command for `typer swarmd.cli utils
        docs`."""
        if ctx.command is not self and cmd_name in VERBS:
            return load_command(cmd_name)
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    name="swarmd",
    cls=LazyCommandGroup,
    help="A node for swarms that train language models with reinforcement learning.",
    epilog="`swarmd local` starts three nodes on this machine; --help explains every command.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"swarmd {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Declares the options of swarmd itself; their callbacks do the work."""


# Placeholders for the help; `LazyCommandGroup` replaces them before any call.
for _group, _verbs in GROUPS.items():
    for _name, _verb in _verbs.items():
        app.command(_name, help=_verb.summary, rich_help_panel=_group)(lambda: None)


def run_command(args: Sequence[str]) -> int:
    """Run one command line and return its exit code; errors are printed on stderr."""
    try:
        outcome = get_command(app).main(list(args) or ["--help"], prog_name="swarmd", standalone_mode=False)
        sys.stdout.flush()
    except SwarmdError as error:
        report_error(error.message, error.fix)
        return error.exit_code
    except typer.TyperException as error:
        return report_usage(error)
    except (typer.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:  # the reader of our output has ended, as `head` does: stop quietly
        discard_output(sys.stdout)
        return ExitCode.FAILURE  # the exit code that Typer uses for this
    except Exception as error:
        return report_unexpected(error)
    return outcome if isinstance(outcome, int) else ExitCode.OK


def report_error(message: str, fix: str = "") -> None:
    """Print what is wrong and, if known, the fix, on a line each."""
    print_error_line(f"error: {message}")
    if fix:
        print_error_line(f"fix: {fix}")


def print_error_line(line: str) -> None:
    """Print on stderr; ignore a closed stream, since the exit code still tells how the command ended."""
    try:
        print(line, file=sys.stderr)
    except OSError:
        discard_output(sys.stderr)


def report_unexpected(error: Exception) -> int:
    """Report an OSError about a path in one line; show anything else with its traceback. Returns the exit code."""
    if isinstance(error, OSError) and error.filename is None and error.errno in FULL:
        discard_output(sys.stdout)
        report_error(
            f"standard output, or a file, cannot be written: {error.strerror}", "Free space where that goes to"
        )
        return ExitCode.CANNOT_CREATE
    from swarmd.files import make_path_error

    refused = make_path_error(error)
    if refused is not None:
        report_error(refused.message, refused.fix)
        return ExitCode.CANNOT_CREATE
    from swarmd.observe.redaction import redact_text

    print_error_line(redact_text("".join(traceback.format_exception(error))).rstrip("\n"))
    report_error("swarmd met an error it does not know", "Please report it with the lines above")
    return ExitCode.FAILURE


def report_usage(error: typer.TyperException) -> int:
    """Explain a wrong command line. Returns the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print_error_line(error.format_message())
    else:
        message, fix = explain_usage(error)
        report_error(KEY.sub("[redacted]", message), fix)  # keys are not accepted as arguments, but people try
    return ExitCode.USAGE


MEANT = {
    "create": "swarm new",
    "info": "status",
    "install": "service install",
    "logs": "log tail",
    "start": "run",
    "train": "local",
    "up": "local",
    "verify": "replay --verify",
}  # other programs' command names and what to use here

WANTED = {
    "int_parsing": "a whole number",
    "float_parsing": "a number, without a unit",
    "greater_than_equal": "{ge:g} or more",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "{le:g} or less",
    "less_than": "less than {lt:g}",
}  # by pydantic's error type, formatted with its context


def explain_usage(error: Any) -> tuple[str, str]:
    """What is wrong with a command line, and the fix."""
    message = str(error.format_message()).rstrip(".")
    context = getattr(error, "ctx", None)
    if context is None:
        return message, "swarmd --help lists what it takes"
    command, path = context.command, context.command_path
    kind = type(error).__name__
    if kind == "BadParameter" and error.__cause__ is not None:
        return _explain_bad_value(error, message)
    if kind == "BadParameter":
        return message.removeprefix("Invalid value: "), f"`{path} --help` says what goes together"
    if message.startswith("Missing"):
        return message, f"Write it as `{command_usage(context)}`"
    names = {name: each for each in command.params for name in each.opts if name.startswith("--")}
    takes = ", ".join(_option_usage(each) for each in dict.fromkeys(names.values()))
    form = f"Write it as `{command_usage(context, optional=True)}`, with {takes or '--help'}"
    if kind == "NoSuchOption":
        from swarmd.config import find_paths

        near = difflib.get_close_matches(error.option_name, names, n=1, cutoff=0.7)
        keys = find_paths(error.option_name.removeprefix("--").replace("-", "_")) if "--config" in names else []
        hint = f"It is {' or '.join(keys)} in a configuration, which --config names. " if keys else ""
        hint = f"Did you mean {near[0]}? " if near else hint
        if error.option_name[1:].isdigit():
            return f"`{path}` takes no number below 0, as {error.option_name} is", form
        return f"{path} has no option {error.option_name}", f"{hint}{form}"
    if message.startswith("Got unexpected"):
        return message, form
    if context.parent is None and (wrong := re.match("No such command '(\\w+)'", message)) and wrong[1] in MEANT:
        return wrong[0], f"Did you mean `swarmd {MEANT[wrong[1]]}`?"
    if context.parent is not None and getattr(command, "commands", None):
        return message, f"After `{path}` comes one of {', '.join(command.commands)}, as `{path} --help` shows"
    return message, f"{path} --help lists what it takes"


def _explain_bad_value(error: Any, message: str) -> tuple[str, str]:
    """Explain an invalid value of an option or argument."""
    found = error.__cause__.errors()[0]
    name = error.param.opts[0] if error.param.param_type_name == "option" else error.param.name.upper()
    source = error.ctx and error.ctx.get_parameter_source(error.param.name)
    if source and source.name == "ENVIRONMENT":
        name = error.param.envvar
    wanted = WANTED.get(found["type"])
    if str(found.get("input")).strip().lower() == "nan":
        wanted = "a number"
    if wanted is not None:
        message = f"{name} takes {wanted.format(**found.get('ctx', {}))}, not {found['input']!r}"
    return message.replace("Value error, ", ""), f"{name}: {error.param.help or ''}"


def command_usage(context: Any, optional: bool = False) -> str:
    """The command with its required arguments and options; with `optional`, also the optional arguments."""
    parts = [context.command_path]
    for each in context.command.params:
        word = each.metavar or (each.name or "").upper()
        if each.param_type_name == "argument":
            parts += [word] if each.required or optional else []
        elif each.required:
            parts.append(f"{each.opts[0]} {word}")
    return " ".join(parts)


def _option_usage(option: Any) -> str:
    name = option.opts[0]
    return name if option.is_flag else f"{name} {option.metavar or option.name.upper()}"


def discard_output(stream: TextIO) -> None:
    """Discard the stream's buffer, which Python would flush at exit, and all later output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def replace_closed_streams() -> None:
    """Open /dev/null for closed standard streams (`<&-`): else the next opened file would get a stream's descriptor,
    and be read or printed into."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, that of the stream
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, "r" if name == "stdin" else "w"))


def main() -> None:
    replace_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # terminals that lack a character, undecodable paths
    sys.exit(run_command(sys.argv[1:]))
