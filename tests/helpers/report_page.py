"""Reading a report's page, and what to make one of."""

from html.parser import HTMLParser

import pyarrow as pa
import pyarrow.parquet as pq

from fbt_rl.artifacts import RunFolder
from fbt_rl.config.file import load_config

VOID = {"meta", "img", "br", "link", "hr", "input"}


class Page(HTMLParser):
    """Checks nesting and ids while parsing; keeps the tags, the text and, by caption, the cells of tables."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.text, self.scripts = [], [], [], "", []
        self.caption, self.tables = "", {}
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.append((tag, found))
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "caption":
            self.caption = ""
        elif tag == "tr" and "tbody" in self.open:
            self.tables.setdefault(self.caption, []).append([])
        elif tag in ("td", "th") and "tbody" in self.open:
            self.tables[self.caption][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif not self.open or self.open[-1] != "style":
            self.text += data
            if "caption" in self.open:
                self.caption += data
            elif {"td", "th"} & {*self.open} and "tbody" in self.open and "small" not in self.open:
                self.tables[self.caption][-1][-1] += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def tiny_values(**changes):
    config = load_config("tiny").model_dump(mode="json")
    return {**config, **changes}


def name_groups(path, kind, names):
    """Give the problems of a made-up run the levels or subjects ``names`` in turn."""
    for stage in ("eval_before", "eval_after"):
        file = RunFolder(path).stage(stage).generations_path
        table = pq.read_table(file)
        numbers = [int(name.partition(":")[2]) for name in table["problem_id"].to_pylist()]
        column = pa.array([names[number % len(names)] for number in numbers], pa.string())
        pq.write_table(table.append_column(kind, column), file)
