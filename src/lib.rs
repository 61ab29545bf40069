//! Totara: tree-search reasoning on a local Llama model, in the terminal.
//!
//! # Bird's eye
//!
//! A *strategy* (YAML) says how thoughts are generated, scored and kept. The *controller* runs it on one *puzzle* of a
//! *task*: it asks a language model (`lm`) for thoughts, has them checked, grows and prunes the *thought tree*, and
//! tells everyone by *events*. The *engine* is one thread that packs the rows of all live branches of all puzzles into
//! one step, plans attention over the *token tree* once, runs the layers and samples. The *device* does the arithmetic,
//! on the CPU or on a CUDA card. The screen, the record, the batch runner and the replay are readers of the same events.
//!
//! # Layers
//!
//! Each module uses only what stands below it; `tests/layers.rs` reads the `use crate::` lines and fails on any other
//! edge. Modules on one line do not use each other.
//!
//! | layer | modules |
//! |---|---|
//! | hostile input | `fuzzing`: what fuzzers and random tests feed; not in the program |
//! | command line | `cli` |
//! | comparison | `report`: what batches have in common, side by side |
//! | front ends | `tui`, `batch`, `bench` |
//! | search | `search`: controller, policies, evaluators, thought tree, events, record |
//! | what search stands on | `strategy`, `task`, `lm` |
//! | engine | `engine`: batching, sampling, constraints, memory |
//! | model | `model`: Llama over a packed batch, weights, tokenizer, chat template, where models come from |
//! | attention and moves | `attention`: plan, methods, cost model; `offload` |
//! | device | `device`: the operations a step needs, on the CPU and on CUDA |
//! | memory | `kv`: pages and the token tree; integers only |
//! | base | `base`: errors, sizes, random streams, text that is safe to show, files that are written whole |
//!
//! # Reading order
//!
//! `search/event.rs`, `search/tree.rs`, `lm.rs`, `kv/tree.rs`, `attention.rs`, `device.rs`, then whatever you came for.
//!
//! # Invariants
//!
//! - On the CPU a row's numbers depend on its own path alone: not on other rows, threads, sharing or
//!   eviction; nor on the instruction set, but for attention's scores with int8 activations, which VNNI takes as integers.
//! - A plan covers each visible pair of query and key exactly once.
//! - Free, live and cached pages are all pages; every run ends with a look whether they are.
//! - The thought tree rebuilt from a run's events is the controller's.
//! - Text from outside loses its control sequences in one place for all that is printed (`cli/out.rs`), in another for the screen
//!   (`tui/text.rs`).
//!
//! # Glossary
//!
//! - *task*: a kind of puzzle; *puzzle*: one instance.
//! - *thought*: a proposal that received a node, pruned ones included. *Proposal*: what the proposer said.
//! - *score*: 0 to 1, higher is better. *Error score*: the task's own count, 0 is right.
//! - *branch*: a live path of the token tree. *Segment*: a run of its tokens with one parent. *Page*: 16 tokens of K/V.
//! - *tier*: where K/V lies: the device's, or the host's, which has all of it where the device has not. *Link*: between them.
//! - *row*: one query token of a step. *Plan*: which rows see which K/V, as units of work.
//!
//! # Deliberately absent
//!
//! No training, no server, no disk tier for K/V, no managed CUDA memory, no models outside the Llama family.

pub mod attention;
pub mod base;
pub mod batch;
pub mod bench;
pub mod cli;
pub mod device;
pub mod engine;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod kv;
pub mod lm;
pub mod model;
pub mod offload;
pub mod report;
pub mod search;
pub mod strategy;
pub mod task;
pub mod tui;
