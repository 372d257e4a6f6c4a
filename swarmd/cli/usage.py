"""Wrong command lines: what was given, in words that name it, and what the command takes."""

from __future__ import annotations

import difflib
from typing import Any

WANTED = {
    "int_parsing": "a whole number",
    "float_parsing": "a number, without a unit",
    "greater_than_equal": "{ge:g} or more",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "{le:g} or less",
    "less_than": "less than {lt:g}",
}  # by pydantic's type of an error, with its context


def explain_usage(error: Any) -> tuple[str, str]:
    """What is wrong, and what to do about it."""
    message = str(error.format_message()).rstrip(".")
    context = getattr(error, "ctx", None)
    if context is None:
        return message, "swarmd --help lists what it takes"
    command, path = context.command, context.command_path
    kind = type(error).__name__
    if kind == "BadParameter" and error.__cause__ is not None:
        return _explain_value(error, message)
    if message.startswith("Missing"):
        return message, f"Write it as `{form_of(context)}`"
    if kind == "NoSuchOption":
        names = {name: each for each in command.params for name in each.opts if name.startswith("--")}
        near = difflib.get_close_matches(error.option_name, names, n=1, cutoff=0.7)
        takes = ", ".join(_option_form(each) for each in dict.fromkeys(names.values()))
        fix = f"Did you mean {near[0]}?" if near else f"Write it as `{form_of(context, optional=True)}`, with {takes}"
        if error.option_name[1:].isdigit():
            return f"{error.option_name} is below 0, which `{path}` takes nowhere", fix
        return f"{path} has no option {error.option_name}", fix
    if message.startswith("Got unexpected"):
        return message, f"Write it as `{form_of(context, optional=True)}`"
    if context.parent is not None and getattr(command, "commands", None):
        return message, f"After `{path}` comes one of {', '.join(command.commands)}, as `{path} --help` shows"
    return message, f"{path} --help lists what it takes"


def _explain_value(error: Any, message: str) -> tuple[str, str]:
    """Of a value that an option or argument does not take."""
    found = error.__cause__.errors()[0]
    name = error.param.opts[0] if error.param.param_type_name == "option" else error.param.name.upper()
    wanted = WANTED.get(found["type"])
    if str(found.get("input")).strip().lower() == "nan":
        wanted = "a number"
    if wanted is not None:
        message = f"{name} takes {wanted.format(**found.get('ctx', {}))}, not {found['input']!r}"
    return message.replace("Value error, ", ""), f"{name}: {error.param.help or ''}"


def form_of(context: Any, optional: bool = False) -> str:
    """A command with all that it needs, and where asked for with the arguments that may be left out."""
    parts = [context.command_path]
    for each in context.command.params:
        word = each.metavar or (each.name or "").upper()
        if each.param_type_name == "argument":
            parts += [word] if each.required or optional else []
        elif each.required:
            parts.append(f"{each.opts[0]} {word}")
    return " ".join(parts)


def _option_form(option: Any) -> str:
    name = option.opts[0]
    return name if option.is_flag else f"{name} {option.metavar or option.name.upper()}"
