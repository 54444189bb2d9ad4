// What the page is given, read from the one JSON inside it.
import type { PackedModel } from "./forward/adder";
import type { PackedClassifier } from "./forward/classifier";
import type { PackedDecoder } from "./forward/decoder";
import type { PackedSmallest } from "./forward/smallest";

export interface Finding {
  text: string;
  details: Record<string, string>;
  withheld: string | null;
  about: "heads" | "roles" | "seeds" | "length" | "comparison" | "lab"; // the part of the page that it explains
  study: string | null; // the study of length that it is from
}

/** An answer in plain words, with a picture of what it is about. */
export interface Headline {
  about: "lab" | "heads" | "seeds" | "length" | "language";
  question: string;
  answer: string;
  rest: string;
  details: Record<string, string>;
  withheld: string | null;
}

/** Encodings that do reach, measured before this page was made: they ship with the package. */
export interface Shipped {
  note: string;
  made_by: string;
  measured: { positions: string; task: string; track: string; trained: number; seeds: number; examples: number; fails_in_range: string[]; probes: { probe: string; worst: number | null; points: [number, number, number][] }[]; source: string; command: string }[];
  proved: { name: string; task: string; contexts: number; wrong: number; smallest_margin: number; rounding_bound: number; parameters: number; trained: number; dtype: string; source: string; command: string }[];
}

/** Models to try at any length: classifiers of sortedness, and the certified models that ship with the package. */
export interface Tries {
  classifiers: (PackedClassifier & { run: string })[];
  sorter: PackedClassifier & { run: string };
  adder: PackedDecoder;
  smallest?: PackedSmallest; // not in older files
}

/** How a run learned, by training step. */
export interface Learning {
  run: string;
  task: string;
  training: [number, number][];
  held_out: [number, number][];
  training_loss: [number, number][];
  held_out_loss: [number, number][];
}

export type Bounds = [number | null, number | null];

export interface HeadRow {
  head: string;
  group?: string | null; // that is kept or closed as a whole; not in older files
  least_window?: number | null; // in a study of windows: null where it must see everything
  accuracy: number;
  drop: number;
  interval: [number | null, number | null] | null;
  loss_increase: number | null;
  verdict: string;
  verdicts?: Record<string, string>; // by kind of ablation; not in older files
  drops?: Record<string, number>;
  pattern?: string | null;
  pattern_scores?: { label: string; stable: number } | null;
  by_stratum: { stratum: string; examples: number; errors: number }[];
}

export type Share = number | "cannot" | null; // "cannot": provably nothing, whatever the weights

export interface Roles {
  table: { part: string; contrast: string; at_answer: boolean; flips: Share; pairs: number; named: boolean; interval?: Bounds | null; placebo?: number | null }[];
  explained: { contrast: string; heads: string[]; flips: Share; sound: boolean; pairs?: number; placebo?: number | null; random_heads?: number | null }[]; // the last three not in older files
  mean_explained: number | null;
}

export interface SiteMaps {
  site: string;
  queries: string[];
  keys: string[];
  heads: number[][][]; // head × query × key
}

/** A precomputed problem: "" with all heads open, then with each head or set closed. */
export interface Example {
  read: string[];
  wanted: string[];
  answers: Record<string, { said: string[]; chances: number[] }>;
  maps: SiteMaps[];
}

/** A few heads on several problems. */
export interface Several {
  heads: string[];
  problems: { read: string[]; wanted: string[]; said: string[]; maps: { head: string; queries: string[]; keys: string[]; weights: (number | null)[][] }[] }[];
}

export interface Heads {
  subject: string;
  baseline: number;
  examples: number;
  ablation: string;
  words?: string; // the ablation of a study of windows, with its size
  recent?: number[]; // the windows of such a study
  units?: string; // "groups" where key-value groups were kept or closed as a whole
  max_drop: number;
  max_loss_increase?: number | null;
  metric?: string; // "exact" where whole answers are counted
  counted: string | null; // the unit of costs, where heads are judged by a loss
  heads: HeadRow[];
  alone: { count: number; heads: string[] } | null;
  alone_removed_together: { accuracy: number; loss_increase?: number | null } | null;
  together: { count: number; heads: string[]; accuracy: number; loss_increase?: number | null; optimal?: boolean } | null;
  sets: { ablation: string; count: number; heads: string[]; accuracy: number; interval: Bounds | null; optimal: boolean; resample: { accuracy: number; interval?: Bounds | null } | null }[] | null; // null in older files
  curves: { order: string; examples?: number; accuracy: number[]; loss?: (number | null)[]; heads: string[][] }[];
  pairs: { heads: [string, string]; drop: number; sum_of_drops: number; backup: number }[];
  pairs_examples?: number;
  roles: Roles | null;
  feeds?: { head: string; pattern: string; score: number; fed_by: string[]; without: Record<string, number> }[]; // not in older files
  withheld: { check: string; reason: string }[];
}

export interface LengthRow {
  positions: string;
  index: string;
  pooling: string | null;
  seed: number;
  probe: string;
  length: number;
  accuracy: number;
  interval: [number, number];
  constant: boolean;
}

export interface Lengths {
  name: string;
  task: string;
  track: string;
  train_lengths: [number, number];
  rows: LengthRow[];
  reach: { positions: string; index: string; probe: string; by_seed: Record<string, number | null>; median: number | null; worst: number | null; stopped_by?: string | null; fails_in_range?: string[] | null }[]; // the last two not in older files
  diagnosis: { positions: string; index: string; probe: string; seed: number; length: number; sentence: string; causes: string[] }[];
  signals: Signal[];
  findings: string[];
  subject?: string; // a user's model
  remarks?: { probe: string; lengths: number[]; remark: string }[]; // where it cannot run, or its answers hardly vary
}

export interface RecallRow {
  task: string;
  length: number;
  cure: string; // "none": untouched
  examples: number;
  accuracy: number | null; // null where it cannot run
  interval: Bounds | null;
  chance: number;
  constant: boolean;
  cannot_run: string | null;
  by_depth: { depth: number; examples: number; accuracy: number | null; interval: Bounds | null }[];
}

export interface Cause {
  cause: string;
  task: string;
  length: number;
  cure: string | null;
  before: number | null;
  after: number | null;
  gain: Bounds | null;
  sham: string | null;
  sham_accuracy: number | null;
  established: boolean;
  evidence: string;
  why_not: string | null; // of what was tried and is not established
}

export interface Losses {
  length: number;
  windows: number;
  rises_at: number | null;
  bands: { first: number; last: number; loss: number | null; interval: Bounds }[];
}

/** A length study of a language model. */
export interface Language {
  name: string;
  subject: string;
  family: string;
  trained: number;
  trained_from: string;
  lengths: number[];
  depths: number[]; // 0 is the beginning of the context, 1 its end
  tasks: string[];
  share: number; // of the accuracy above chance in short contexts that an effective length keeps
  rows: RecallRow[];
  effective: { task: string; cure: string; learned: boolean; length: number | null }[];
  cures: { task: string; length: number; cure: string; gain: Bounds | null; in_range: number | null; in_range_gain: Bounds | null }[];
  choices: { length: number; cure: string; sentence: string; config: string }[];
  causes: Cause[]; // established ones first
  loss: Losses | null;
  withheld: { check: string; reason: string }[];
}

interface Moment {
  table: (number | null)[][] | null; // position × feature
  bias: (number | null)[][] | null; // head × distance
}

export interface Signal {
  positions: string;
  index: string;
  trained: number;
  tokens: number;
  before: Moment;
  after: Moment;
}

export interface Spread {
  n: number;
  missing: number;
  unlearned: number; // of those that are missing: runs that did not learn in range
  median: number | null;
  mean: number | null;
  best: number | null;
  worst: number | null;
  least: number | null;
  most: number | null;
  interval: [number | null, number | null] | null;
}

export interface Group {
  runs: number;
  complete: number;
  unfinished: number;
  broken: number;
  seeds: number;
  metrics: Record<string, Spread>;
  [key: string]: unknown; // the values it is grouped by
}

export interface Comparison {
  name: string;
  by: string[];
  metrics: string[];
  where?: string | null;
  among: number;
  rows: Group[];
  dots: Record<string, [number, string][][]>; // by metric and group: the value and the run
  findings: string[];
}

export interface Member {
  submission: string;
  folder: string;
  healthy: boolean;
  causes: string[];
  mistakes: string[];
  sentence: string;
  reported: number | null;
  decoded: number | null;
  forced: number | null;
  seconds: number;
  refused: string | null;
  checks: { check: string; cause: boolean; status: string; meaning: string; remedy: string; under?: string; hidden_by?: string; uncover?: string }[];
  printed: number;
  output: string;
}

export interface Classroom {
  members: Member[];
  mistakes: { mistake: string; count: number; submissions: string[]; sentence: string; remedy: string }[];
  groups: { mistakes: string[]; count: number; submissions: string[] }[];
}

export interface Content {
  title: string;
  headlines: Headline[];
  findings: Finding[];
  model: (PackedModel & { run: string }) | null;
  only: "try" | null; // a part of the page, for a notebook
  heads: Heads | null;
  studies: string[]; // the runs whose heads were studied; the first is shown
  maps: SiteMaps[] | null; // the average of many problems
  several?: Several | null; // not in older files
  examples: Example[];
  seeds: { subject: string; alone: number; alone_removed_together: number; together: number; together_accuracy: number; critical: string[] }[];
  lengths: Lengths[];
  languages: Language[];
  comparisons: Comparison[];
  classroom?: Classroom; // the page of a class shows nothing else
  certificates: { run: string; contexts: number; smallest_margin: number | null; refused: string | null }[];
  made: { facts: Record<string, string>; commands: string[]; runs: Record<string, string | number | null>[]; curves: Learning[] };
  shipped?: Shipped | null; // not in a notebook
  tries?: Tries | null; // not on every page, nor in a notebook
  missing: { what: string; command: string }[];
  files: { name: string; data: string }[]; // packed by gzip, in base64
  left_out: string[]; // files that were too large
}

export const content: Content = JSON.parse(document.getElementById("content")!.textContent!);
