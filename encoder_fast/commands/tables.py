"""Tables on standard output: rich on a terminal, aligned plain text elsewhere."""

import sys


def show(title: str, header: tuple, rows: list[tuple]) -> None:
    """Prints rows of strings under a header; nothing where there are no rows."""
    rows = [tuple(str(cell) for cell in row) for row in rows]
    if not rows:
        return
    if sys.stdout.isatty() and _show_rich(title, header, rows):
        return
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    print(f"{title}")
    for row in (header, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  " + "  ".join(cells).rstrip())
    print()


def _show_rich(title: str, header: tuple, rows: list[tuple]) -> bool:
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except Exception:
        # A broken rich may raise anything, and this is what `doctor` reports it with.
        return False
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim")
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console().print(table)
    return True
