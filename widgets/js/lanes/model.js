/** Timeline of the ranks, built from the kernel's messages (widgets/swimlanes/window.py). Times in microseconds. */

/**
 * @typedef {object} Operation An operation of the core: on one tensor, or on several that were fused
 * @property {number} asked when the first of its tensors was requested
 * @property {number} ready when the last of its tensors was requested
 * @property {number} agreed when all ranks had requested it
 * @property {number} begun when it left the queue
 * @property {number} end
 * @property {string} kind "ALLREDUCE"
 * @property {string} name of its first tensor
 * @property {string} how "SHM_SLICES"
 * @property {number} tensors
 * @property {number} bytes
 * @property {number} merged number of short operations that are shown as one
 * @property {number} late the rank that it waited for, -1 for none
 * @property {number} waited how long
 */

/** @typedef {[begin: number, end: number]} Span */
/** @typedef {[name: string, since: number, missing: number[]]} Open an unfinished operation, and the ranks that have not requested it */
/** @typedef {{ operations: Operation[], waits: Span[], open: Open[], came: number }} Lane waits: the program stood still */
/** @typedef {{ now: number, words: string[], lanes: Map<number, Lane> }} Timeline */
/** @typedef {{ operations: number[][], waits: Span[], open: Open[], came: number }} LaneMessage */
/**
 * @typedef {object} TimelineMessage
 * @property {number} now
 * @property {number} from number of words in earlier messages
 * @property {string[]} words
 * @property {Record<string, LaneMessage>} lanes
 * @property {boolean} [whole] independent of earlier messages
 */

/** Places in an operation on the wire. */
export const OPERATION = /** @type {const} */ ({
  asked: 0,
  ready: 1,
  agreed: 2,
  begun: 3,
  end: 4,
  kind: 5,
  name: 6,
  how: 7,
  tensors: 8,
  bytes: 9,
  merged: 10,
  late: 11,
  waited: 12,
});

/** Length of the timeline, in microseconds. */
export const KEEP = 20e6;

/**
 * Return the timeline after a message; null if an earlier message is missing.
 *
 * @param {Timeline | null} timeline
 * @param {TimelineMessage} message
 * @returns {Timeline | null}
 */
export function takeMessage(timeline, message) {
  if (!message.whole && (!timeline || timeline.words.length !== message.from)) return null;
  /** @type {Timeline} */
  const before = message.whole || !timeline ? { now: 0, words: [], lanes: new Map() } : timeline;
  const words = before.words.concat(message.words);
  const oldest = message.now - KEEP;
  /** @type {Map<number, Lane>} */
  const lanes = new Map();
  for (const [rank, fresh] of Object.entries(message.lanes)) {
    const old = before.lanes.get(Number(rank));
    const operations = (old?.operations ?? []).concat(fresh.operations.map((row) => operationOf(row, words)));
    lanes.set(Number(rank), {
      operations: operations.filter(({ end }) => end > oldest),
      waits: (old?.waits ?? []).concat(fresh.waits).filter(([, end]) => end > oldest),
      open: fresh.open,
      came: fresh.came,
    });
  }
  return { now: message.now, words, lanes };
}

/**
 * @param {number[]} row
 * @param {string[]} words
 * @returns {Operation}
 */
function operationOf(row, words) {
  return {
    asked: row[OPERATION.asked],
    ready: row[OPERATION.ready],
    agreed: row[OPERATION.agreed],
    begun: row[OPERATION.begun],
    end: row[OPERATION.end],
    kind: words[row[OPERATION.kind]] ?? "",
    name: words[row[OPERATION.name]] ?? "",
    how: words[row[OPERATION.how]] ?? "",
    tensors: row[OPERATION.tensors],
    bytes: row[OPERATION.bytes],
    merged: row[OPERATION.merged],
    late: row[OPERATION.late],
    waited: row[OPERATION.waited],
  };
}

/**
 * Return the begin of the first operation.
 *
 * @param {Timeline} timeline
 */
export function beginOf(timeline) {
  const starts = [...timeline.lanes.values()].map(({ operations: [first] }) => first?.asked ?? timeline.now);
  return Math.max(0, Math.min(timeline.now, ...starts));
}
