// The shapes that the other modules draw; the twin of view_types.py. Types only: never sent.

/** @typedef {string | [string, Record<string, any>, any[]]} MdNode */
/** @typedef {{text: string, note: string}} Block */
/** @typedef {{name: string, arguments: string, phase: string, outcome: string,
 *   decided?: string}} CallWords */
/** @typedef {{calls: CallWords[], more: number, text: string, error: string}} Summary */
/** @typedef {{media_type: string, data: string, alt: string, size: string}} Picture */
/** @typedef {{label: string, text: string, kind: string, long: boolean}} Piece */
/** @typedef {{nth: number, host: string, why: string, editable: string, pieces: Piece[],
 *   long: boolean, scope: string}} Question */
/** @typedef {{key: string, name: string, phase: string, word: string, where: string,
 *   arguments: Block, given: Block, decision: string, result: Block, error: string, detail: Block,
 *   notes: string[], images: Picture[], progress: string, question: Question | null}} Tool */
/** @typedef {{words: string, earlier: string, tools: string, params: string, system: Block,
 *   messages: {role: string, body: Block, images: Picture[]}[]}} Request */
/** @typedef {{id: string, phase: string, who: string, summary: Summary, numbers: string,
 *   reasoning: Block, text: Block, tree: MdNode[], drafts: {name: string, arguments: string}[],
 *   tools: Tool[], request: Request, notices: string[], error: string}} Turn */
/** @typedef {{status: {word: string, tone: string, mark: string}, activity: string,
 *   wait_ms: number, running: boolean, doing: string, elapsed_ms: number, bar_words: string,
 *   notices: string[], facts: {key: string, value: string, word: string, aside: string}[],
 *   bar: {kind: string, ms: number, turn: string}[], about: string, model: string,
 *   offline: string, turns: Turn[], answer: string, answer_note: string, error: string,
 *   error_mark: string, error_help: string, next: {words: string, type: string}[]}} State */
/** @typedef {{key: string, data: any, build: () => HTMLElement}} Section */
/** @typedef {{node: HTMLElement, data: any, stream: Text | null}} Placed */
/** What a person has done to a question: the form that is open, what is typed, what was said.
 * @typedef {{call: string, nth: number, form: "" | "edit" | "deny", text: string, reason: string,
 *   said: string, trouble: string, armed: boolean,
 *   boxes: Set<{node: HTMLElement, patch: () => void}>}} Kept */
/** What the views of one widget share: see widget.js.
 * @typedef {{state: State, views: Set<any>, touched: Map<string, boolean>, asked: Map<string, Kept>,
 *   since: number, moved: number, stopping: boolean, send: (content: any) => void,
 *   take: (state: State) => void, stop: () => void, gone: () => void}} Shared */

export {};
