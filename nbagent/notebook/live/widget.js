// The widget: the kernel sends the picture (`state`) and ops; views draw what they share.

import { apply } from "./ops.js";
import { createView } from "./run.js";

/** @typedef {import("./shapes.js").Shared} Shared */
/** @typedef {import("./shapes.js").State} State */
/** @typedef {import("./shapes.js").Turn} Turn */

const ENDED = new Set(["restarting", "autorestarting", "terminating", "dead"]);

/** Call back when the kernel ends, where the front end tells (JupyterLab, Notebook 7).
 * @param {any} model @param {() => void} gone @returns {() => void} the end of watching */
function watchKernel(model, gone) {
  const kernel = model.widget_manager?.kernel;
  const heard = (/** @type {any} */ _kernel, /** @type {string} */ status) => ENDED.has(status) && gone();
  kernel?.statusChanged?.connect(heard);
  kernel?.disposed?.connect(gone);
  return () => {
    kernel?.statusChanged?.disconnect(heard);
    kernel?.disposed?.disconnect(gone);
  };
}

/** What was at work when the kernel ended. @param {Turn} turn @returns {Turn} */
function cutOff(turn) {
  if (turn.phase !== "running") return turn;
  const over = (/** @type {string} */ phase) => phase === "ok" || phase === "failed";
  const calls = turn.summary.calls.map((call) =>
    over(call.phase) ? call : { ...call, phase: "failed", outcome: "interrupted" });
  const tools = turn.tools.map((tool) =>
    over(tool.phase) ? tool : { ...tool, phase: "failed", word: "interrupted", progress: "", question: null });
  return { ...turn, summary: { ...turn.summary, calls }, tools };
}

/** The picture of a run whose kernel has ended. @param {State} state @returns {State} */
function interrupted(state) {
  return {
    ...state,
    turns: state.turns.map(cutOff),
    running: false,
    doing: "",
    activity: "",
    wait_ms: 0,
    status: { word: "Interrupted", tone: "bad", mark: "✕" },
    error: "the kernel is gone",
    error_mark: "✕",
    error_help: "%agent resume goes on, in the new kernel",
  };
}

/** @returns {Shared} */
function createShared() {
  /** @type {Shared} */
  const shared = {
    state: /** @type {any} */ (null),
    views: new Set(),
    /** What the person folded or unfolded, by key. */
    touched: new Map(),
    /** What the person does to questions, by call and number. */
    asked: new Map(),
    since: 0,
    /** When the person last scrolled or typed. */
    moved: -Infinity,
    stopping: false,
    send: () => {},
    take(state) {
      // A copy: ops change it, and the widget manager's own must stay what the kernel sent.
      shared.state = structuredClone(state);
      shared.since = performance.now();
      if (!state.running) shared.stopping = false;
      for (const view of shared.views) view.all();
    },
    stop() {
      shared.stopping = true;
      shared.send({ kind: "stop" });
      for (const view of shared.views) view.patchHead();
    },
    gone() {
      if (!shared.state?.running) return;
      for (const { id, phase } of shared.state.turns) {
        // What was being written stays in sight.
        if (phase === "running" && !shared.touched.has(id)) shared.touched.set(id, true);
      }
      shared.take(interrupted(shared.state));
    },
  };
  return shared;
}

// anywidget gives `initialize` and `render` different `model` objects: what they share is here.
export default () => {
  const shared = createShared();
  return {
    /** @param {{model: any}} given */
    initialize({ model }) {
      const changed = () => shared.take(model.get("state"));
      const heard = (/** @type {any} */ message) => {
        for (const op of message?.ops ?? []) apply(shared, op);
      };
      shared.send = (content) => model.send(content);
      changed();
      model.on("change:state", changed);
      model.on("msg:custom", heard);
      const leave = watchKernel(model, shared.gone);
      shared.send({ kind: "ready", running: shared.state.running });
      return () => {
        model.off("change:state", changed);
        model.off("msg:custom", heard);
        leave();
      };
    },
    /** @param {{model: any, el: HTMLElement}} given */
    render({ model, el }) {
      if (shared.state === null) shared.take(model.get("state"));
      const view = createView(shared, el);
      shared.views.add(view);
      return () => {
        shared.views.delete(view);
        view.close();
      };
    },
  };
};
