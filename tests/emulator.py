"""A terminal emulator for the control sequences of the program and readline.

It keeps the rows that have scrolled away.
"""

import re

from agent import columns_of

TOKEN = re.compile(r"(?s)\x1b\[([?\d;]*)([A-Za-z@])|\x1b[^\[]|.")


class Row(list):
    """The cells of a row; a wide character fills two, the second one empty."""

    goes_on = False  # whether the terminal wrapped the line here


class Emulator:
    """The screen is the rows from `top` on; those above have scrolled away."""

    def __init__(self, columns, lines):
        self.columns, self.lines = columns, lines
        self.rows, self.top, self.x, self.y = [Row()], 0, 0, 0
        self.wraps, self.rest = True, ""

    @property
    def text(self):
        """The lines as they were written, with wrapped rows joined."""
        whole = [""]
        for row in self.rows:
            whole[-1] += "".join(row)
            if not row.goes_on:
                whole.append("")
        return [line.rstrip() for line in whole]

    def feed(self, data):
        data, self.rest = self.rest + data, ""
        cut = re.search(r"\x1b(\[[?\d;]*)?\Z", data)  # its end has not arrived yet
        if cut:
            data, self.rest = data[: cut.start()], cut[0]
        for token in TOKEN.finditer(data):
            if token[2]:
                self.steer(token[1], token[2])
            elif token[0] == "\r":
                self.x = 0
            elif token[0] == "\n":
                self.feed_line()
            elif token[0] == "\b":
                self.x = max(0, min(self.x, self.columns - 1) - 1)
            elif token[0] >= " ":
                self.write(token[0])

    def steer(self, given, what):
        row, number = self.rows[self.y], int(given) if given.isdigit() else 1
        if given == "?7":
            self.wraps = what == "h"
        elif what == "A":
            self.y = max(self.top, self.y - number)
        elif what == "C":
            self.x = min(self.columns - 1, self.x + number)
        elif what == "D":
            self.x = max(0, self.x - number)
        elif what == "J" and not given:
            del row[self.x :], self.rows[self.y + 1 :]
            row.goes_on = False
        elif what == "K" and not given:
            del row[self.x :]
            row.goes_on = False
        elif what == "P":
            del row[self.x : self.x + number]
        elif what == "@":
            row[self.x : self.x] = [" "] * number
        elif what not in "mhl":
            raise ValueError(f"unknown control sequence: {given}{what}")

    def feed_line(self):
        self.y += 1
        if self.y == len(self.rows):
            self.rows.append(Row())
        self.top = max(self.top, self.y - self.lines + 1)

    def write(self, letter):
        wide = columns_of(letter)
        if wide == 0:  # it combines with the character before
            row = self.rows[self.y]
            at = max((n for n, c in enumerate(row[: self.x]) if c), default=None)
            if at is not None:
                row[at] += letter
            return
        if self.x + wide > self.columns:
            if self.wraps:
                self.rows[self.y].goes_on = True
                self.feed_line()
                self.x = 0
            else:
                self.x = self.columns - wide
        row = self.rows[self.y]
        row += [" "] * (self.x - len(row))
        row[self.x : self.x + wide] = [letter, ""][:wide]
        self.x += wide

    def resize(self, columns, lines):
        """Wrap the lines again, as most terminals do, and keep the cursor in place."""
        old, self.rows, self.columns = self.rows, [], columns
        cells, place = [], 0
        for number, row in enumerate(old):
            if number == self.y:
                row += [" "] * (self.x - len(row))
                place = len(cells) + self.x
            cells += row
            if not row.goes_on or number == self.y:
                new = self.broken(cells)
                if number == self.y:
                    self.find(new, place)
                self.rows += new
                cells = []
        self.lines = lines
        self.top = max(0, len(self.rows) - lines, self.y - lines + 1)
        self.top = min(self.top, self.y)

    def broken(self, cells):
        rows = [Row()]
        for at, cell in enumerate(cells):
            wide = 2 if cells[at + 1 : at + 2] == [""] else 1
            if cell and len(rows[-1]) + wide > self.columns:
                rows[-1].goes_on = True
                rows.append(Row())
            rows[-1].append(cell)
        return rows

    def find(self, rows, place):
        """Move the cursor to this cell of the rows that will be added."""
        self.y = len(self.rows)
        for row in rows[:-1]:
            if place < len(row):
                break
            place -= len(row)
            self.y += 1
        self.x = min(place, self.columns)
