// Types of what the kernel and the page send to each other, for `tsc --checkJs`. This file is not
// sent: the other files of this folder are joined to one module (`script` in `run_widget.py`).

/** A node of view/node.py: a text, or `[tag, attributes, ...children]`.
 * @typedef {string | any[]} Picture */

/** A change of a run's picture: a part, more text of a part, or the whole run.
 * @typedef {["put", key: string, node: Picture, parent: string]
 *   | ["add", key: string, text: string]
 *   | ["done", node: Picture]} Op */

/** From the kernel to the views of a run; to one of them if it is named.
 * @typedef {{ run: string, ops: Op[], page?: number | string }} OpsMessage */

/** The run is shown again below, in the output with this `data-kernel`.
 * @typedef {{ below: string }} BelowMessage */

/** From the kernel to the buttons of a finished run: a message, a text for the clipboard, a form, or
 * the rows of a list.
 * @typedef {{ run: string, at: string, tab: string, said?: string, text?: string,
 *   form?: Picture, list?: Picture }} ReplyMessage */

/** Texts of fields by their `data-field`. @typedef {Record<string, string>} Fields */

/** From the page to the kernel: of a widget, a running run, a question, a review, a finished run.
 * @typedef {{ kind: "ready", page?: number | string, tab?: string }
 *   | { kind: "closed", page: number | string, tab: string }
 *   | { kind: "stop" | "pause", run: string }
 *   | { kind: "fold", run: string, key: string, open: boolean }
 *   | { kind: "answer", run: string, question: string, choice: string, reason?: string,
 *       fields?: Fields }
 *   | { kind: "answer_all", run: string, questions: string[] }
 *   | { kind: "preview", run: string, question: string, fields: Fields }
 *   | { kind: "label" | "skip" | "back", run: string, place: string, value: string,
 *       fields: Fields }
 *   | { kind: "open", run: string, value: string }
 *   | { kind: "act", do: string, run?: string, at: string, turn?: string, fields?: Fields,
 *       tab: string }
 *   } PageMessage */

/** Sends a message to the kernel. @typedef {(message: PageMessage) => void} Send */

/** The model of a widget, as anywidget gives it.
 * @typedef {{ get: (name: string) => any, send: (message: any) => void,
 *   on: (event: string, handler: (message: any) => void) => void,
 *   off: (event: string, handler: (message: any) => void) => void,
 *   widget_manager?: any }} Model */

/** A widget of one kind. `initialize` returns what ends it, `render` what ends one view.
 * @typedef {{ initialize: (context: { model: Model }) => () => void,
 *   render?: (context: { model: Model, el: HTMLElement }) => () => void }} Widget */

/** A part of the page whose buttons are answered together.
 * @typedef {{ owns: (button: any) => boolean,
 *   actions: Record<string, (button: any) => void>,
 *   otherwise?: (button: any) => void, onFold?: (fold: any) => void }} Surface */

/** A picture that draws its rows itself. `put` returns true if it drew the part.
 * @typedef {{ choices: any, onClick: (button: any) => void, say: (text: string) => void,
 *   put: (key: string, node: Picture) => boolean, end: () => void }} LargePicture */

/** Closed lists of view/node.py, which the kernel writes before the module: nothing else is built.
 * @type {{ tags: string[], attributes: string[], values: Record<string, string> }} */
var LISTS;
