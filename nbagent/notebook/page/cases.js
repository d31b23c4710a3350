// The page over all cases of a batch: filters, order, unfolded cases, labels, two variants side by
// side. Rows are nodes of the kernel or of the file; they become DOM in slices, when nothing else
// is to be done, so that 10,000 of them never block the page.

// Time that one slice may take.
const SLICE_MS = 10;
const FIRST_MS = 15;
const FIRST_ROWS = 40;
const BLOCK_ROWS = 15;
const MAX_CHOICES = 200;
// New values of many rows are written into the choices together.
const CHOICES_MS = 100;
const FAILED = new Set(["wrong", "failed", "no answer"]);
// Columns that a hint names.
const MAX_NAMES = 16;
// Characters that a column may be wide, and the shares of the columns with long texts.
const MAX_CHARS = 22;
const MIN_LONG = 40;
const MAX_LONG = 200;
/** Widths of columns in the grid of a row; others are as wide as their texts.
 * @type {Record<string, string>} */
const WIDTHS = { row: "minmax(70px, 8em)", verdict: "6.4em", cost: "5.4em", time: "4.6em" };
/** Keys and what they do. @type {Record<string, string>} */
const CASE_KEYS = { j: "down", ArrowDown: "down", k: "up", ArrowUp: "up", n: "next", p: "previous",
  "/": "find", r: "reason", Home: "first", End: "last" };
/** Keys that label with yes and no. @type {Record<string, string>} */
const YES_NO = { y: "1", x: "0" };

/** A case: its row as a node, and what was read from it.
 * @typedef {{ key: string, node: any, text: string, values: Map<string, string[]>,
 *   sort: Map<string, string>, cells: Map<string, string>, row: any, open: any,
 *   detail: Picture | null }} Case */

/** Where the unfolded cases come from and where labels go.
 * @typedef {{ detail: (key: string) => Picture | null,
 *   label: (key: string, value: string, reason: string, name: string) => void,
 *   save?: () => void, moreText?: (key: string) => string }} CaseSource */

/** What a person chose, which outlives a redrawn page.
 * @typedef {{ search: string, picks: Map<string, string>, order: string, isDown: boolean,
 *   left: string, right: string, onlyChanged: boolean, current: string,
 *   open: Set<string> }} CaseChoices */

/** A name of a column as a person types it. @param {string} name @returns {string} */
const plainName = (name) => name.toLowerCase().replace(/\s+/g, "");

/** The text of a node. @param {any} node @returns {string} */
function nodeText(node) {
  return typeof node === "string" ? node : node.slice(2).map(nodeText).join(" ");
}

/** Call `step` in idle slices until it returns false. A new call ends the one before.
 * @returns {{ run: (step: () => boolean) => void, end: () => void }} */
function inSlices() {
  let turn = 0;
  // Safari has no requestIdleCallback.
  const later = (/** @type {() => void} */ work) => "requestIdleCallback" in globalThis
    ? requestIdleCallback(work, { timeout: 200 }) : setTimeout(work, 1);
  return {
    run(step) {
      const mine = ++turn;
      const slice = () => {
        const end = performance.now() + SLICE_MS;
        while (mine === turn && performance.now() < end) if (!step()) return;
        if (mine === turn) later(slice);
      };
      later(slice);
    },
    end() {
      turn++;
    },
  };
}

/** Words of two texts that differ: pairs of `=`, `-` or `+` and a text.
 * @param {string} before @param {string} after @returns {[string, string][]} */
function wordDiff(before, after) {
  const split = (/** @type {string} */ text) => text.match(/\w+\s*|[^\w\s]\s*|\s+/g) ?? [];
  const [a, b] = [split(before), split(after)];
  // Length of the longest common part of the rests from i and j.
  const best = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      best[i][j] = a[i] === b[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
    }
  }
  /** @type {[string, string][]} */
  const pieces = [];
  const add = (/** @type {string} */ op, /** @type {string} */ text) => {
    const last = pieces.at(-1);
    if (last?.[0] === op) last[1] += text;
    else pieces.push([op, text]);
  };
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      add("=", a[i++]);
      j++;
    } else if (j >= b.length || (i < a.length && best[i + 1][j] >= best[i][j + 1])) {
      add("-", a[i++]);
    } else {
      add("+", b[j++]);
    }
  }
  return pieces;
}

/** One side of a difference as nodes. @param {[string, string][]} pieces @param {string} side */
function diffNodes(pieces, side) {
  const tag = side === "-" ? "del" : "ins";
  return pieces.filter(([op]) => op === "=" || op === side).map(([op, text]) =>
    op === "=" ? text : [tag, { class: `nba-${tag}` }, text]);
}

/** Show the cases in a root that `view/case_table.py` drew.
 * @param {any} root @param {CaseSource} source @param {CaseChoices} [before] */
function createCases(root, source, before) {
  const find = (/** @type {string} */ selector) => root.querySelector(selector);
  const table = keyed(root, "rows").parentElement;
  /** Rows below each other in one `tbody`, which the browser skips while it is out of sight. */
  let block = table.tBodies[0];
  const heads = /** @type {any[]} */ ([...table.tHead.rows[0].cells]);
  const columns = heads.map(({ dataset }) => String(dataset.field));
  const headNodes = [...table.tHead.rows[0].childNodes];
  const axes = columns.filter((field) => field.startsWith("axis"));
  const failure = columns.includes("verdict") ? "verdict" : "";
  /** Fields of the columns by their titles. @type {Map<string, string>} */
  const fields = new Map(heads.map((head) => [plainName(head.textContent), head.dataset.field]));
  if (columns.includes("prompt")) fields.set("prompt", fields.get("prompt") ?? "prompt");
  /** Names of the cells of the batch's table. @type {Set<string>} */
  const cellNames = new Set();
  /** Length of the longest text of each column. @type {Map<string, number>} */
  const lengths = new Map();
  /** @type {Map<string, Case>} */
  const cases = new Map();
  /** @type {CaseChoices} */
  const choices = before ?? { search: "", picks: new Map(), order: "", isDown: false, left: "",
    right: "", onlyChanged: false, current: "", open: new Set() };
  /** Values of each column that a person can choose. @type {Map<string, Set<string>>} */
  const known = new Map();
  const slices = inSlices();
  /** Keys of the shown rows, in their order. @type {string[]} */
  let shown = [];
  /** Number of shown rows that are DOM already. */
  let drawn = 0;
  /** Key of the row that gets the focus when it is drawn. */
  let wanted = "";
  let isWaiting = false;
  /** Pairs of cases of the two compared variants, by the key of the first. @type {Map<string, Case>} */
  const pairs = new Map();

  // Cases

  /** Read a row. @param {any} node @returns {Case} */
  function read(node) {
    const [, attributes, ...cells] = node;
    const values = new Map();
    const sort = new Map();
    cells.forEach((/** @type {any} */ cell, /** @type {number} */ index) => {
      const field = columns[index];
      const buttons = cell.slice(2).filter((/** @type {any} */ child) => child[0] === "button");
      values.set(field, (buttons.length ? buttons : cell.slice(2)).map(nodeText));
      sort.set(field, cell[1].value ?? nodeText(cell));
    });
    const own = Object.entries(JSON.parse(attributes.value ?? "{}"));
    const text = [nodeText(node), ...own.map(([, cell]) => cell)].join(" ").toLowerCase();
    return { key: attributes["data-key"], node, text, values, sort, row: null, open: null,
      cells: new Map(own.map(([name, cell]) => [plainName(name), String(cell)])), detail: null };
  }

  /** Values of a column that a person chooses from. @param {Case} item */
  function learn(item) {
    for (const [field, set] of known) {
      for (const value of item.values.get(field) ?? []) if (set.size < MAX_CHOICES) set.add(value);
    }
    for (const field of columns) {
      const length = (item.values.get(field) ?? []).join(" · ").length;
      if (length > (lengths.get(field) ?? 0)) lengths.set(field, length);
    }
    for (const name of item.cells.keys()) cellNames.add(name);
  }

  /** Write the choices of each column; what is chosen stays. */
  function writeChoices() {
    for (const [field, set] of known) {
      const select = find(`select[data-field="${field}"]`);
      const values = [...set].sort((a, b) => a.localeCompare(b, undefined, { numeric: true }));
      const fresh = values.filter((value) =>
        ![...select.options].some((option) => option.value === value));
      select.append(...fresh.map((value) => build(["option", { value }, value])));
      select.value = choices.picks.get(field) ?? "";
      select.hidden = set.size === 0;
    }
    setWidths();
  }

  /** Give each column the width of its texts, within limits. */
  function setWidths() {
    const widths = heads.map((head) => {
      /** @type {string} */
      const field = head.dataset.field;
      const length = Math.max(head.textContent.length + 2, (lengths.get(field) ?? 0) + 1);
      if (field === "prompt" || field === "answer") {
        const part = Math.min(MAX_LONG, Math.max(MIN_LONG, length));
        return [`minmax(${field === "answer" ? 14 : 8}em, ${part}fr)`, ""];
      }
      const chars = Math.min(MAX_CHARS, length);
      return [WIDTHS[field] ?? `${chars}ch`, `minmax(0, ${chars}fr)`];
    });
    root.style.setProperty("--cols", widths.map(([wide]) => wide).join(" "));
    root.style.setProperty("--short", widths.map(([, narrow]) => narrow).join(" "));
  }

  /** @param {Case} item */
  const variantOf = (item) => axes.map((field) => item.values.get(field)?.[0] ?? "").join(" · ");
  /** @param {Case | undefined} item */
  const verdictOf = (item) => item?.values.get(failure)?.[0] ?? "";
  const isCompared = () => choices.left !== "" && choices.right !== "";

  // Filters and order

  /** @param {Case} item */
  function matches(item) {
    for (const [field, value] of choices.picks) {
      if (!item.values.get(field)?.includes(value)) return false;
    }
    const words = choices.search.split(/\s+/).filter(Boolean);
    const other = pairs.get(item.key);
    return words.every((word) => [item, other].some((one) => one && hasWord(one, word)));
  }

  /** True if a case has a word, or if a column has a value: `system:p1`, `cost>0`.
   * @param {Case} item @param {string} word */
  function hasWord(item, word) {
    const [, title = "", sign = "", value = ""] = /^([^:<>=]+)([:<>=])(.*)$/.exec(word) ?? [];
    const name = plainName(title);
    const field = fields.get(name);
    if (!title || (field === undefined && !cellNames.has(name))) {
      return item.text.includes(word) || Boolean(source.moreText?.(item.key).includes(word));
    }
    const cell = item.cells.get(name);
    const texts = field === undefined ? [] : item.values.get(field) ?? [];
    const all = [...texts, ...cell === undefined ? [] : [cell]].map((text) => text.toLowerCase());
    if (sign === ":") return value === "" || all.some((text) => text.includes(value));
    if (sign === "=") return all.includes(value);
    const number = Number.parseFloat((field && item.sort.get(field)) || (cell ?? ""));
    return sign === ">" ? number > Number(value) : number < Number(value);
  }

  /** Pair the cases of the two chosen variants by row and attempt. */
  function pairUp() {
    pairs.clear();
    if (!isCompared()) return;
    const name = (/** @type {string} */ side) =>
      find(`select[data-field="${side}"]`).selectedOptions[0]?.textContent;
    const rowOf = (/** @type {Case} */ item) => item.values.get("row")?.[0] ?? "";
    const [left, right] = [name("left"), name("right")];
    const others = new Map();
    for (const item of cases.values()) {
      if (variantOf(item) === right) others.set(rowOf(item), item);
    }
    for (const item of cases.values()) {
      const other = others.get(rowOf(item));
      if (variantOf(item) === left && other && other !== item) pairs.set(item.key, other);
    }
  }

  /** @returns {string[]} */
  function chosen() {
    let items = [...cases.values()];
    if (isCompared()) {
      items = items.filter((item) => pairs.has(item.key) && (!choices.onlyChanged ||
        verdictOf(item) !== verdictOf(pairs.get(item.key))));
    }
    items = items.filter(matches);
    const { order, isDown } = choices;
    if (order) {
      const of = (/** @type {Case} */ item) => item.sort.get(order) ?? "";
      const collator = new Intl.Collator(undefined, { numeric: true });
      // Empty cells are last in both directions.
      items.sort((a, b) => Number(!of(a)) - Number(!of(b)) ||
        (isDown ? -1 : 1) * collator.compare(of(a), of(b)));
    }
    return items.map(({ key }) => key);
  }

  // Drawing

  /** The row of a case as DOM. @param {Case} item @returns {any} */
  function rowOf(item) {
    if (item.row) return item.row;
    const row = build(item.node);
    row.setAttribute("role", "row");
    for (const cell of row.children) cell.setAttribute("role", "cell");
    row.firstChild.setAttribute("role", "rowheader");
    setRow(row, item);
    item.row = row;
    return row;
  }

  /** Mark a row as the current one, and as unfolded. @param {any} row @param {Case} item */
  function setRow(row, item) {
    const button = row.querySelector(".nba-unfold");
    button.tabIndex = choices.current === item.key ? 0 : -1;
    row.classList.toggle("nba-current", choices.current === item.key);
    button.setAttribute("aria-expanded", String(choices.open.has(item.key)));
  }

  /** A pair of cases as one row: verdicts, and both answers with what differs.
   * @param {Case} item @returns {any} */
  function pairRow(item) {
    const other = /** @type {Case} */ (pairs.get(item.key));
    const [a, b] = [item, other].map((one) => one.values.get("answer")?.join("") ?? "");
    const [from, to] = [verdictOf(item), verdictOf(other)];
    const pieces = wordDiff(a, b);
    const isEqual = pieces.every(([op]) => op === "=");
    const look = from === to ? "" : FAILED.has(to) ? "nba-error" : "nba-fine";
    const cells = [["td", { role: "rowheader" }, ["button", { class: "nba-unfold",
      "data-do": "unfold" }, item.values.get("row")?.[0] ?? ""]],
    ["td", { role: "cell", class: look }, from === to ? from : `${from} → ${to}`],
    ["td", { role: "cell", class: "nba-side" }, ...diffNodes(pieces, "-")],
    ["td", { role: "cell", class: "nba-side" }, ...isEqual ? ["(the same)"] :
      diffNodes(pieces, "+")]];
    const row = build(["tr", { role: "row", class: "nba-case nba-pair", "data-key": item.key },
      ...cells]);
    setRow(row, item);
    return row;
  }

  /** The unfolded case as DOM. @param {Case} item @returns {any} */
  function openRow(item) {
    if (item.open) return item.open;
    item.detail ??= source.detail(item.key);
    const other = isCompared() ? pairs.get(item.key) : undefined;
    if (other) other.detail ??= source.detail(other.key);
    const waits = ["p", { class: "nba-note" }, "Loading…"];
    const sides = [item, other].filter((one) => one !== undefined).map((one) =>
      ["div", { class: "nba-half", "data-key": `open/${one.key}` }, one.detail ?? waits]);
    const cell = ["td", { role: "cell", colspan: String(columns.length) },
      ["div", { class: sides.length > 1 ? "nba-halves" : "" }, ...sides]];
    item.open = build(["tr", { role: "row", class: "nba-opened" }, cell]);
    return item.open;
  }

  /** Draw the next row. @returns {boolean} true if there are more */
  function drawNext() {
    const key = shown[drawn];
    const item = key === undefined ? undefined : cases.get(key);
    if (!item) return false;
    const row = isCompared() ? pairRow(item) : rowOf(item);
    row.setAttribute("aria-rowindex", String(drawn + 2));
    setRow(row, item);
    if (drawn % BLOCK_ROWS === 0) {
      block = table.appendChild(document.createElement("tbody"));
      block.setAttribute("role", "rowgroup");
    }
    block.append(row);
    if (choices.open.has(item.key)) block.append(openRow(item));
    drawn++;
    if (wanted === item.key) focusRow(item.key);
    // Reading a width lays out a block out of sight: the first Tab would do this to all of them.
    if (drawn % BLOCK_ROWS === 0) void row.firstChild.offsetWidth;
    return drawn < shown.length;
  }

  function removeRows() {
    for (const old of [...table.tBodies]) old.remove();
  }

  /** Show the rows that match, in their order. */
  function redraw() {
    pairUp();
    shown = chosen();
    drawn = 0;
    for (const item of cases.values()) item.open = null;
    removeRows();
    table.setAttribute("aria-rowcount", String(shown.length + 1));
    root.classList.toggle("nba-comparing", isCompared());
    drawLegendDiff();
    if (!shown.includes(choices.current)) choices.current = shown[0] ?? "";
    patchHeads();
    writeCount();
    const end = performance.now() + FIRST_MS;
    while (drawn < FIRST_ROWS && performance.now() < end && drawNext());
    if (drawn < shown.length) slices.run(drawNext);
    else slices.end();
  }

  /** Show what differs in the texts that the two compared variants stand for. */
  function drawLegendDiff() {
    const [first] = pairs;
    const two = first ? [cases.get(first[0]), first[1]] : [];
    const text = (/** @type {Case | undefined} */ item, /** @type {string} */ axis) =>
      [...root.querySelectorAll(`.nba-legend tr[data-field="${axis}"]`)].find((row) =>
        row.getAttribute("value") === item?.values.get(axis)?.[0])?.lastChild.textContent;
    const rows = axes.flatMap((axis) => {
      const [a, b] = [text(two[0], axis), text(two[1], axis)];
      if (a === undefined || b === undefined || a === b) return [];
      const pieces = wordDiff(a, b);
      const title = heads.find(({ dataset }) => dataset.field === axis)?.textContent ?? "";
      return [["div", { class: "nba-lab" }, title], ["div", { class: "nba-halves" },
        ["div", { class: "nba-side" }, ...diffNodes(pieces, "-")],
        ["div", { class: "nba-side" }, ...diffNodes(pieces, "+")]]];
    });
    find(".nba-legend-diff").replaceChildren(...rows.map(build));
  }

  /** Redraw once for several changes. */
  function redrawSoon() {
    if (isWaiting) return;
    isWaiting = true;
    queueMicrotask(() => {
      isWaiting = false;
      redraw();
    });
  }

  function patchHeads() {
    if (isCompared()) {
      const name = (/** @type {string} */ side) =>
        find(`select[data-field="${side}"]`).selectedOptions[0]?.textContent ?? "";
      const titles = ["row", "verdict", name("left"), name("right")];
      table.tHead.rows[0].replaceChildren(...titles.map((title) => build(["th",
        { scope: "col", role: "columnheader" }, title])));
    } else if (heads[0].parentElement !== table.tHead.rows[0]) {
      table.tHead.rows[0].replaceChildren(...headNodes);
    }
    find(".nba-labelled").textContent = isCompared()
      ? `labels the left side: ${find('select[data-field="left"]').selectedOptions[0]?.textContent}`
      : "";
    for (const head of heads) {
      const isOrdered = head.dataset.field === choices.order;
      if (isOrdered) head.ariaSort = choices.isDown ? "descending" : "ascending";
      else head.removeAttribute("aria-sort");
    }
  }

  function writeCount() {
    const total = isCompared() ? pairs.size : cases.size;
    const kind = isCompared() ? "pairs" : "cases";
    const picked = [...choices.picks].map(([field, value]) => {
      const head = heads.find(({ dataset }) => dataset.field === field);
      return `${head?.textContent} = ${value}`;
    });
    if (choices.search) picked.push(`“${choices.search}”`);
    const text = `${shown.length} of ${total} ${kind}${picked.length ? `: ${picked.join(", ")}` : ""}` +
      changes() + (choices.search && !shown.length ? hint() : "");
    const line = find(".nba-shown");
    if (line.textContent !== text) line.textContent = text;
  }

  /** Number of shown pairs whose verdict got better and worse. */
  function changes() {
    if (!isCompared() || !failure) return "";
    const count = (/** @type {(from: string, to: string) => boolean} */ isCounted) =>
      shown.filter((key) => isCounted(verdictOf(cases.get(key)), verdictOf(pairs.get(key)))).length;
    const better = count((from, to) => FAILED.has(from) && to === "right");
    const worse = count((from, to) => from === "right" && FAILED.has(to));
    return ` · ${better} better, ${worse} worse`;
  }

  /** Says how to filter by a column. */
  function hint() {
    const names = new Set([...fields.keys(), ...cellNames]);
    return ". Words are looked for in all texts; column:value, column=value and cost>0 in one " +
      `column: ${[...names].slice(0, MAX_NAMES).join(", ")}`;
  }

  // The current row

  /** Make a row the current one. @param {string} key */
  function makeCurrent(key) {
    const last = choices.current;
    choices.current = key;
    wanted = "";
    for (const changed of [last, key]) {
      const item = cases.get(changed);
      const row = item && rowInPage(changed);
      if (row) setRow(row, item);
    }
  }

  /** Make a row the current one and focus it, as soon as it is drawn. @param {string} key */
  function focusRow(key) {
    makeCurrent(key);
    const row = rowInPage(key);
    if (!row) {
      wanted = key;
      return;
    }
    row.querySelector(".nba-unfold").focus({ preventScroll: true });
    row.scrollIntoView({ block: "nearest" });
  }

  /** @param {string} key @returns {any} */
  function rowInPage(key) {
    if (!isCompared()) {
      const row = cases.get(key)?.row;
      return row?.isConnected ? row : null;
    }
    return table.querySelector(`.nba-pair[data-key="${CSS.escape(key)}"]`);
  }

  /** True if the focus is in a row. */
  const hasFocus = () => Boolean(root.getRootNode().activeElement?.closest?.(".nba-case") &&
    table.contains(root.getRootNode().activeElement));

  /** @param {number} by */
  function moveBy(by) {
    const at = shown.indexOf(choices.current);
    const key = shown[Math.min(shown.length - 1, Math.max(0, at + by))];
    if (key !== undefined) focusRow(key);
  }

  /** Go to the next failure after the current row, or to the one before it. @param {number} by */
  function toFailure(by) {
    if (!failure) return;
    const isBad = (/** @type {string} */ key) => {
      const item = cases.get(key);
      return FAILED.has(verdictOf(item)) ||
        (isCompared() && FAILED.has(verdictOf(pairs.get(key))));
    };
    const at = shown.indexOf(choices.current);
    const isAtStart = !hasFocus() && by > 0;
    for (let n = isAtStart ? 0 : by; Math.abs(n) <= shown.length; n += by) {
      const key = shown[(at + n + 2 * shown.length) % shown.length];
      if (key !== undefined && isBad(key)) return focusRow(key);
    }
    say("No failure among the shown rows");
  }

  /** Unfold a row, or fold it. @param {string} key */
  function unfold(key) {
    const item = cases.get(key);
    const row = item && rowInPage(key);
    if (!item || !row) return;
    if (choices.open.delete(key)) {
      item.open?.remove();
      item.open = null;
    } else {
      choices.open.add(key);
      row.after(openRow(item));
    }
    setRow(row, item);
    focusRow(key);
  }

  // Labels

  /** @param {string} text */
  function say(text) {
    find(".nba-said").textContent = text;
  }

  /** Label the current case, and go on to the next row. @param {string} value
   * @param {(key: string) => void} goTo */
  function mark(value, goTo) {
    const field = find('[data-field="reason"]');
    const key = choices.current;
    if (!cases.has(key)) return;
    const item = cases.get(key);
    const name = item ? [item.values.get("row")?.[0], variantOf(item)].filter(Boolean).join(" · ") : "";
    source.label(key, value, field.value.trim(), name);
    field.value = "";
    const next = shown[shown.indexOf(key) + 1];
    if (next !== undefined) goTo(next);
  }

  /** The values of the buttons. @returns {string[]} */
  const marks = () => [...root.querySelectorAll('[data-do="mark"]')].map(({ value }) => value);

  // Clicks and keys

  /** @param {any} button */
  function keyOf(button) {
    return button.closest("tr").dataset.key;
  }

  /** @param {string} field @param {string} value */
  function pick(field, value) {
    if (value === "") choices.picks.delete(field);
    else choices.picks.set(field, value);
    writeChoices();
    redraw();
  }

  /** Answer a click on a button. @param {any} button */
  function onClick(button) {
    const action = button.dataset.do;
    if (action === "unfold") return unfold(keyOf(button));
    if (action === "pick") {
      const cell = button.closest("td");
      return pick(columns[cell.cellIndex], button.textContent);
    }
    if (action === "order") return orderBy(button.closest("th").dataset.field);
    if (action === "mark") return mark(button.value, makeCurrent);
    if (action === "next") return toFailure(1);
    if (action === "save") return source.save?.();
    if (action === "all") showAll();
  }

  function showAll() {
    Object.assign(choices, { search: "", left: "", right: "", onlyChanged: false });
    choices.picks.clear();
    writeFields();
    redraw();
  }

  /** Order by a column; by a second click the other way round, by a third not at all.
   * @param {string} field */
  function orderBy(field) {
    const isSame = choices.order === field;
    choices.order = isSame && choices.isDown ? "" : field;
    choices.isDown = isSame && !choices.isDown;
    redraw();
  }

  /** Write the choices into the fields of a redrawn page. */
  function writeFields() {
    find('[data-field="search"]').value = choices.search;
    for (const side of ["left", "right"]) {
      const select = find(`select[data-field="${side}"]`);
      if (select) select.value = choices[/** @type {"left" | "right"} */ (side)];
    }
    const changed = find('[data-field="changed"]');
    if (changed) changed.checked = choices.onlyChanged;
    writeChoices();
  }

  /** @param {any} event */
  function onInput({ target }) {
    /** @type {string} */
    const field = target.dataset.field;
    if (field === "search") choices.search = target.value.trim().toLowerCase();
    else if (field === "left" || field === "right") choices[field] = target.value;
    else if (field === "changed") choices.onlyChanged = target.checked;
    else if (known.has(field)) return pick(field, target.value);
    else return;
    redrawSoon();
  }

  /** @param {any} event */
  function onKey(event) {
    const { target, key } = event;
    if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
    const isField = target.matches("input, select, textarea");
    if (isField) {
      const isDone = key === "Escape" || (key === "Enter" && target.matches("[data-field=reason]"));
      if (!isDone && !(key === "ArrowDown" && target.matches("[type=search]"))) return;
      event.preventDefault();
      focusRow(choices.current);
      return;
    }
    // Keys in an unfolded run, such as those of its folds, are its own.
    if (target.closest(".nba-opened") && key !== "Escape") return;
    const value = YES_NO[key] ?? key;
    const action = Object.hasOwn(CASE_KEYS, key) ? CASE_KEYS[key] : "";
    if (/^[0-9yx]$/.test(key) && marks().includes(value)) mark(value, focusRow);
    else if (key === "Escape") focusRow(choices.current);
    else if (action) doByKey(action);
    else return;
    event.preventDefault();
  }

  /** @param {string} action */
  function doByKey(action) {
    if (action === "down") moveBy(1);
    else if (action === "up") moveBy(-1);
    else if (action === "first") moveBy(-shown.length);
    else if (action === "last") moveBy(shown.length);
    else if (action === "next") toFailure(1);
    else if (action === "previous") toFailure(-1);
    else find(`[data-field="${action === "find" ? "search" : "reason"}"]`).focus();
  }

  /** Replace the row of a case; the order stays, so that nothing moves under the mouse.
   * @param {string} key @param {any} node */
  function putRow(key, node) {
    const old = cases.get(key);
    const item = read(node);
    cases.set(key, item);
    learn(item);
    choicesSoon();
    if (!old) return addSoon();
    const row = isCompared() ? null : old.row;
    item.open = old.open;
    // An unfolded run is asked for again: it has changed.
    if (choices.open.has(key)) item.detail = source.detail(key) ?? old.detail;
    if (row?.isConnected) {
      const hadFocus = row.contains(root.getRootNode().activeElement);
      const index = row.getAttribute("aria-rowindex");
      const fresh = rowOf(item);
      fresh.setAttribute("aria-rowindex", index);
      row.replaceWith(fresh);
      if (hadFocus) fresh.querySelector(".nba-unfold").focus({ preventScroll: true });
    } else if (isCompared() || !shown.includes(key)) {
      addSoon();
    }
  }

  let isWriting = false;
  function choicesSoon() {
    if (isWriting) return;
    isWriting = true;
    setTimeout(() => {
      isWriting = false;
      writeChoices();
    }, CHOICES_MS);
  }

  let isAdding = false;
  /** Draw new rows when the messages that arrive together are read. */
  function addSoon() {
    if (isAdding) return;
    isAdding = true;
    setTimeout(() => {
      isAdding = false;
      // Rows that are there already stay where they are.
      const hadFocus = hasFocus();
      const isPlain = !choices.order && !isCompared();
      const next = isPlain ? chosen() : [];
      if (isPlain && shown.every((key, index) => next[index] === key)) {
        shown = next;
        choices.current ||= shown[0] ?? "";
        table.setAttribute("aria-rowcount", String(shown.length + 1));
        writeCount();
        slices.run(drawNext);
      } else {
        redraw();
        if (hadFocus) focusRow(choices.current);
      }
    });
  }

  // Begin

  root.classList.add("nba-drawn");
  table.setAttribute("role", "table");
  table.tHead.setAttribute("role", "rowgroup");
  table.tHead.rows[0].setAttribute("role", "row");
  for (const head of heads) {
    head.setAttribute("role", "columnheader");
    head.setAttribute("scope", "col");
    const { field } = head.dataset;
    if (find(`select[data-field="${field}"]`)) known.set(field, new Set());
  }
  removeRows();
  root.addEventListener("input", onInput);
  root.addEventListener("keydown", onKey);
  root.addEventListener("focusin", (/** @type {any} */ { target }) => {
    const key = target.matches(".nba-unfold") ? keyOf(target) : undefined;
    if (key === undefined || key === choices.current) return;
    const last = choices.current;
    choices.current = key;
    for (const changed of [last, key]) {
      const item = cases.get(changed);
      const row = item && rowInPage(changed);
      if (row) setRow(row, item);
    }
  });
  writeFields();
  writeCount();

  return {
    choices, onClick, say,
    /** Replace a row, or the unfolded case, and return true; false for another part.
     * @param {string} key @param {Picture} node */
    put(key, node) {
      if (key.startsWith("open/")) {
        const item = cases.get(key.slice(5));
        if (item) item.detail = node;
        keyed(table, key)?.replaceChildren(build(node));
        return true;
      }
      if (!/^\d+$/.test(key)) return false;
      putRow(key, node);
      return true;
    },
    /** Draw a label in its row. @param {string} key @param {string} text */
    setLabel(key, text) {
      const item = cases.get(key);
      const index = columns.indexOf("label");
      if (!item || index < 0) return;
      const [tag, attributes, ...cells] = item.node;
      const pick = ["button", { class: "nba-pick", "data-do": "pick", tabindex: "-1" }, text];
      cells[index] = ["td", { class: "nba-value", value: text }, ...(text ? [pick] : [])];
      putRow(key, [tag, attributes, ...cells]);
    },
    end() {
      slices.end();
    },
  };
}
