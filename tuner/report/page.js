"use strict";
// A heading sorts its table: numbers as numbers, empty cells last.
const value = (row, place) => {
  const text = row.cells[place].textContent.trim();
  const number = parseFloat(text.replace(/^≤ /, "").replaceAll(",", ""));
  return text === "" ? null : /^(≤ )?[\d.,-]+(e[+-]?\d+)?(%|\.\..*)?$/i.test(text) && !isNaN(number) ? number : text;
};
const order = (a, b) =>
  typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, place) => head.querySelector("button").addEventListener("click", () => {
    const up = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows].map((row) => [value(row, place), row]);
    rows.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : up ? order(a, b) : order(b, a)));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }));
}
for (const input of document.querySelectorAll("input[data-filters]")) {
  const rows = [...document.getElementById(input.dataset.filters).tBodies[0].rows];
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
}
