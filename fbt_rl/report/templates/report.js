"use strict";
// Sorting of tables, and the search over answers. Without it the page can be read all the same.

const ROWS_AT_ONCE = 100;
const DELAY = 150; // ms after the last key, so that typing stays fluent
const VERDICTS = ["right", "wrong", "cut off", "not judged"];
const collator = new Intl.Collator("en", { numeric: true });
const shown = (number) => number.toLocaleString("en");

function element(tag, properties, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// --- sorting

/** A button in every column head; `sort(column, sign)` puts the rows in order, `sign` -1 for the largest first. */
function makeSortable(table, sort) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = element("button", { type: "button", title: "Sort by this column" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      sort(column, up ? 1 : -1);
    });
  });
}

/** Numbers by size, texts by letter; what is missing (null) comes last in either direction. */
function compare(a, b, sign) {
  if (a === null || b === null) return (a === null) - (b === null);
  if (typeof a === "number" && typeof b === "number") return sign * (a - b);
  return sign * collator.compare(a, b);
}

/** What a cell is sorted by: its main line; of "before → after" the latter. */
function cellValue(cell) {
  const main = [...cell.childNodes].filter((node) => node.nodeName !== "SMALL");
  const text = main.map((node) => node.textContent).join("").split("→").at(-1).trim();
  if (text === "–" || text === "") return null;
  const number = Number(text.replaceAll(",", "").replace("−", "-").replace(/%$| of .*$/, ""));
  return Number.isNaN(number) ? text : number;
}

function sortBodies(table, column, sign) {
  for (const body of table.tBodies) {
    const rows = [...body.rows].filter((row) => !row.classList.contains("group"));
    const values = new Map(rows.map((row) => [row, cellValue(row.cells[column])]));
    body.append(...rows.sort((a, b) => compare(values.get(a), values.get(b), sign)));
  }
}

for (const table of document.querySelectorAll("table")) {
  if (table.tHead && table.id !== "answer-table") {
    makeSortable(table, (column, sign) => sortBodies(table, column, sign));
  }
}

// --- the search over answers

const FIELDS = ["problem", "evaluation", "mode", "sample", "verdict", "finish", "tokens", "text"]; // in table order

function readAnswers(json) {
  const { words, problems, rows } = JSON.parse(json);
  const known = problems.map(([id, prompt, answer]) => ({ id, prompt, answer }));
  return rows.map(([evaluation, problem, mode, sample, verdict, finish, tokens, text]) => ({
    problem: known[problem],
    evaluation: words[evaluation],
    mode: words[mode],
    sample,
    verdict: words[verdict],
    finish: words[finish],
    tokens,
    text,
  }));
}

function verdictMark(verdict) {
  return element("span", { className: verdict.replace(" ", "-"), textContent: verdict });
}

/** The problem of `answer` with what every evaluation and mode gave as this sample, side by side. */
function sideBySide(answers, answer) {
  const given = answers.filter((other) => other.problem === answer.problem && other.sample === answer.sample);
  const evaluations = new Set(given.map((other) => other.evaluation));
  const cells = given.map((other) => {
    const label = element(
      "p",
      { className: "label" },
      element("b", { textContent: `${other.mode}, ${other.evaluation}` }),
      element("span", { textContent: `${shown(other.tokens)} tokens` }),
      verdictMark(other.verdict),
    );
    const cell = element("div", { className: "answer" }, label, element("pre", { textContent: other.text }));
    cell.classList.toggle("after", other === answer);
    return cell;
  });
  const grid = element("div", { className: "answers" }, ...cells);
  grid.style.setProperty("--columns", evaluations.size > 1 ? evaluations.size : given.length);
  return element(
    "article",
    { className: "problem" },
    element("pre", { className: "prompt", textContent: answer.problem.prompt }),
    element("p", { className: "why" }, "right answer: ", element("code", { textContent: answer.problem.answer })),
    grid,
  );
}

function answerRow(answers, answer) {
  const button = element("button", { type: "button", className: "open", textContent: answer.problem.id });
  button.setAttribute("aria-expanded", "false");
  const row = element(
    "tr",
    {},
    element("th", { scope: "row" }, button),
    element("td", { className: "left", textContent: answer.evaluation }),
    element("td", { className: "left", textContent: answer.mode }),
    element("td", { textContent: shown(answer.sample) }),
    element("td", { className: "left" }, verdictMark(answer.verdict)),
    element("td", { className: "left", textContent: answer.finish }),
    element("td", { textContent: shown(answer.tokens) }),
    element("td", { className: "left start", textContent: answer.text.slice(0, 80) }),
  );
  let details = null;
  button.addEventListener("click", () => {
    if (details === null) {
      const cell = element("td", { colSpan: FIELDS.length, className: "left" }, sideBySide(answers, answer));
      row.after((details = element("tr", { className: "details" }, cell)));
    } else {
      details.remove();
      details = null;
    }
    button.setAttribute("aria-expanded", String(details !== null));
  });
  return row;
}

function browse(answers) {
  const [form, table, more, found] = ["answer-filters", "answer-table", "answer-more", "answer-count"].map((id) =>
    document.getElementById(id),
  );
  const body = table.tBodies[0];
  let ordered = answers;
  let matching = [];

  for (const select of form.querySelectorAll("select")) {
    const values = [...new Set(answers.map((answer) => answer[select.name]))];
    if (select.name === "verdict") values.sort((a, b) => VERDICTS.indexOf(a) - VERDICTS.indexOf(b));
    select.append(...values.map((value) => element("option", { textContent: value })));
  }

  function showMore() {
    const start = body.querySelectorAll("tr:not(.details)").length;
    body.append(...matching.slice(start, start + ROWS_AT_ONCE).map((answer) => answerRow(answers, answer)));
    const left = matching.length - start - ROWS_AT_ONCE;
    more.hidden = left <= 0;
    more.textContent = `Show ${shown(Math.min(left, ROWS_AT_ONCE))} more`;
    return body.querySelectorAll("tr:not(.details)")[start];
  }

  function filter() {
    const wanted = Object.fromEntries(new FormData(form));
    const [text, id] = [wanted.text.trim().toLowerCase(), wanted.problem.trim().toLowerCase()];
    const exact = [...form.querySelectorAll("select")].map((select) => select.name).filter((name) => wanted[name]);
    matching = ordered.filter(
      (answer) =>
        exact.every((name) => answer[name] === wanted[name]) &&
        answer.problem.id.toLowerCase().includes(id) &&
        (!text || answer.text.toLowerCase().includes(text) || answer.problem.prompt.toLowerCase().includes(text)),
    );
    body.replaceChildren();
    showMore();
    const right = matching.filter((answer) => answer.verdict === "right").length;
    found.textContent = `${shown(matching.length)} of ${shown(answers.length)} answers, ${shown(right)} of them right`;
  }

  let waiting;
  form.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(filter, DELAY);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter)); // after the fields are empty
  more.addEventListener("click", () => showMore().querySelector("button").focus());
  makeSortable(table, (column, sign) => {
    const value = (answer) => (column === 0 ? answer.problem.id : answer[FIELDS[column]]);
    ordered = [...answers].sort((a, b) => compare(value(a), value(b), sign));
    filter();
  });
  filter();
  document.getElementById("answer-browser").hidden = false;
}

const data = document.getElementById("answer-data");
if (data) browse(readAnswers(data.textContent));
performance.mark("usable"); // what tests and benchmarks wait for
