"""What a picture looks like on paper."""

import io

from rich.console import Console, RenderableType


def printed(picture: RenderableType, width: int = 160) -> str:
    """A picture as plain text, in lines of so many characters."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(picture)
    return console.export_text()


def words_in(picture: RenderableType, width: int = 200) -> str:
    """Its words in one line, without frames."""
    return " ".join(printed(picture, width).replace("│", " ").split())
