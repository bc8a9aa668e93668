"""Reading a report's page, and a config to make one of."""

from html.parser import HTMLParser

from fbt_rl.config_file import load_config

VOID = {"meta", "img", "br", "link", "hr", "input"}


class Page(HTMLParser):
    """Checks nesting and ids while parsing; keeps the tags and the text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.ids, self.text, self.scripts = [], [], [], "", []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.append((tag, found))
        if "id" in found:
            self.ids.append(found["id"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif not self.open or self.open[-1] != "style":
            self.text += data

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def tiny_values(**changes):
    config = load_config("tiny").model_dump(mode="json")
    return {**config, **changes}
