// The page over all cases in a view of the kernel: its messages bring the rows and unfolded cases.

/** Draw the page's rows in the view of a kernel: its messages bring them.
 * @param {any} root @param {Send} send @param {CaseChoices} [before] */
function liveCases(root, send, before) {
  const { run } = root.dataset;
  return createCases(root, {
    detail(key) {
      send({ kind: "open", run, value: key });
      return null;
    },
    label(key, value, reason) {
      send({ kind: "label", run, place: key, value, fields: { reason } });
    },
  }, before);
}

LARGE["nba-cases"] = liveCases;
