// The page over all cases as a file: its cases are in the file, its labels in the browser.

const LEFT_OUT = "This case is too large for the file: its texts are left out";

/** Labels of a file: by run id. @typedef {Record<string, { value: any, reason: string,
 *   at: string }>} FileLabels */

/** Read the data that the file holds. @param {Element} element @returns {any} */
function dataOf(element) {
  return JSON.parse(element.textContent ?? "null");
}

/** Labels in the browser's storage, which may be closed to a file.
 * @param {string} key @returns {{ labels: FileLabels, keep: () => boolean }} */
function storedLabels(key) {
  /** @type {FileLabels} */
  let labels = {};
  try {
    const stored = JSON.parse(localStorage.getItem(key) ?? "{}");
    if (stored && typeof stored === "object" && !Array.isArray(stored)) labels = stored;
  } catch {
    // Without storage, or with damaged labels, the page begins without any.
  }
  return {
    labels,
    keep() {
      try {
        localStorage.setItem(key, JSON.stringify(labels));
        return true;
      } catch {
        return false;
      }
    },
  };
}

/** Show the cases of this file. @param {Element} main */
function showCaseFile(main) {
  const about = dataOf(/** @type {Element} */ (document.getElementById("nba-about")));
  const rowBlocks = [...document.querySelectorAll("script.nba-rows-data")];
  const detailBlocks = [...document.querySelectorAll("script.nba-details-data")];
  let lastBlock = -1;
  /** @type {any[]} */
  let details = [];
  /** Texts of the unfolded cases, for the filter. @type {Map<string, string>} */
  const texts = new Map();
  const { labels, keep } = storedLabels(about.key);
  const root = build(about.page);
  main.replaceChildren(root);

  /** The unfolded cases of a block. Only the last block stays in memory. @param {number} block */
  function detailsOf(block) {
    if (lastBlock !== block) details = dataOf(detailBlocks[block]);
    lastBlock = block;
    return details;
  }

  /** @param {number} number @returns {any} */
  function detailOf(number) {
    const detail = detailsOf(Math.floor(number / about.block))[number % about.block];
    return detail ?? ["p", { class: "nba-note" }, LEFT_OUT];
  }

  /** @param {any} value */
  const labelText = (value) => value === true ? "yes" : value === false ? "no" : String(value);

  function save() {
    const made = Object.entries(labels).map(([run_id, label]) => ({ run_id, ...label }));
    const text = JSON.stringify({ nbagent_labels: 1, batch: about.batch, name: about.label,
      by: about.by, scale: about.scale, labels: made }, null, 1);
    root.querySelector(".nba-save-text")?.remove();
    const field = build(["textarea", { class: "nba-save-text", rows: "4",
      "aria-label": "Labels as JSON" }]);
    field.value = text;
    root.querySelector(".nba-labels").append(field);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    link.download = "labels.json";
    link.click();
    // Later: the browser reads the address after the click.
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    cases.say(`${made.length} labels saved as labels.json; batch.add_labels("labels.json") reads it`);
  }

  const cases = createCases(root, {
    detail: (key) => detailOf(Number(key)),
    label(key, value, reason, name) {
      const run = about.runs[Number(key)];
      if (!run) return cases.say("This case has no run to label");
      const plain = about.scale ? Number(value) : value === "1";
      labels[run] = { value: plain, reason, at: new Date().toISOString() };
      const isKept = keep();
      cases.setLabel(key, labelText(plain));
      const n = Object.keys(labels).length;
      cases.say(`${labelText(plain)} for row ${name}. ${n} labelled, ${isKept ? "kept in this browser" : "in this page only"}: export them`);
    },
    save,
    moreText: (key) => texts.get(key) ?? "",
  });
  listenForClicks(root, { owns: () => true, actions: {}, otherwise: cases.onClick },
    new AbortController().signal);

  // One block after the other, so that the page is there at once.
  let next = 0;
  const slices = inSlices();
  /** @type {any[]} */
  let rows = [];
  const addRow = () => {
    if (!rows.length) {
      if (next >= rowBlocks.length) {
        readTexts();
        return false;
      }
      rows = dataOf(rowBlocks[next++]);
      return true;
    }
    const row = rows.shift();
    const key = row[1]["data-key"];
    cases.put(key, row);
    const label = labels[about.runs[Number(key)]];
    if (label) cases.setLabel(key, labelText(label.value));
    return true;
  };

  /** Read the texts of the unfolded cases, by which the rows are filtered too. */
  function readTexts() {
    let number = 0;
    slices.run(() => {
      if (number >= about.runs.length) return false;
      texts.set(String(number), nodeText(detailOf(number)).toLowerCase());
      number++;
      return true;
    });
  }

  for (let n = 0; n <= FIRST_ROWS && addRow(); n++);
  slices.run(addRow);
  // So that keys move through the cases at once: nothing else is on this page.
  root.querySelector(".nba-case-scroll")?.focus({ preventScroll: true });
}

showCaseFile(/** @type {Element} */ (document.querySelector("main")));
