//! Counters of the engine: what the screen shows of memory, input/output and speed, and how the worker keeps them.

use crate::device::attend::Io;
use crate::device::tiers::Link;
use crate::device::{Device, Times};
use crate::kv::{KvStats, PAGE_TOKENS};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What the screen shows of memory, link and speed. Whatever a model cannot tell is `None`, and shown as not known.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    pub kv: Option<KvCounters>,
    pub io: Option<IoCounters>,
    pub link: Option<LinkCounters>,
    pub speed: Option<SpeedCounters>,
    /// What the device found out while it ran that a user should know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// K/V memory at this moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvCounters {
    pub pages_total: u64,
    pub pages_live: u64,
    pub pages_cached: u64,
    pub page_bytes: u64,
    /// Tokens stored in live segments, each once.
    pub tokens_stored: u64,
    /// Tokens of all live paths added up: what would be stored without sharing.
    pub tokens_logical: u64,
    pub evicted_pages: u64,
    /// Prompt tokens found in the cache, and looked up, since the start.
    pub prefix_hits: u64,
    pub prefix_lookups: u64,
}

/// Bytes attention moved since the start, counted from the plans (all layers).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoCounters {
    /// K/V bytes read.
    pub kv_bytes: u64,
    /// What grouping by query (Radix) would have read.
    pub radix_bytes: u64,
    pub partial_bytes: u64,
}

/// Bytes over the link between the tiers since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LinkCounters {
    pub to_device_bytes: u64,
    pub to_host_bytes: u64,
    /// Of what attention wanted on the device (`--offload`): what was there, what was brought, what went for it.
    #[serde(default)]
    pub hits: u64,
    #[serde(default)]
    pub fetches: u64,
    #[serde(default)]
    pub evictions: u64,
    /// Bytes of K/V that the device may hold, and the most it held; both 0 where it holds everything.
    #[serde(default)]
    pub device_budget_bytes: u64,
    #[serde(default)]
    pub device_peak_bytes: u64,
    /// Pages of branches that paused, which left the device, and pages that came back.
    #[serde(default)]
    pub moved_out: u64,
    #[serde(default)]
    pub moved_back: u64,
    /// Tokens before a selecting row that it attended to, of all of them; summed over rows, K/V heads and layers.
    #[serde(default)]
    pub attended: u64,
    #[serde(default)]
    pub past: u64,
    /// The attention weight that selected rows missed, and of how many rows and heads it is the sum.
    #[serde(default)]
    pub missed_mass: f64,
    #[serde(default)]
    pub samples: u64,
    /// Seconds that transfers to the device took, and that its steps waited for them.
    #[serde(default)]
    pub fetch_seconds: f64,
    #[serde(default)]
    pub waited_seconds: f64,
}

impl LinkCounters {
    /// The share of what attention wanted that was on the device; `None` where nothing had to be.
    pub fn hit_rate(&self) -> Option<f64> {
        let wanted = self.hits + self.fetches;
        (wanted > 0).then(|| self.hits as f64 / wanted as f64)
    }

    /// The mean share of the tokens before them that selecting rows attended to; `None` where none selects.
    pub fn attended_share(&self) -> Option<f64> {
        (self.past > 0).then(|| self.attended as f64 / self.past as f64)
    }

    /// The share of the transfers' time in which the device computed; `None` where nothing was timed.
    pub fn overlap(&self) -> Option<f64> {
        (self.fetch_seconds > 0.0).then(|| (1.0 - self.waited_seconds / self.fetch_seconds).max(0.0))
    }

    /// The mean attention weight that a selecting row missed; `None` where it was never looked at.
    pub fn missed(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.missed_mass / self.samples as f64)
    }
}

impl From<Link> for LinkCounters {
    fn from(link: Link) -> Self {
        Self {
            to_device_bytes: link.to_device_bytes,
            to_host_bytes: link.to_host_bytes,
            hits: link.hits,
            fetches: link.fetches,
            evictions: link.evictions,
            device_budget_bytes: link.budget_bytes,
            device_peak_bytes: link.peak_bytes,
            moved_out: link.moved_out,
            moved_back: link.moved_back,
            attended: link.attended,
            past: link.past,
            missed_mass: link.missed,
            samples: link.samples,
            fetch_seconds: link.fetch_seconds,
            waited_seconds: link.waited_seconds,
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SpeedCounters {
    pub steps: u64,
    pub rows: u64,
    pub sampled: u64,
    /// Seconds spent in steps, and what they went to.
    pub step_seconds: f64,
    pub attention_seconds: f64,
    pub products_seconds: f64,
    pub plan_seconds: f64,
    /// Tokens a second over the last moments (rows forwarded, prompt included).
    pub tokens_per_second: f64,
    /// Texts' steps with a draft, drafted tokens, and accepted ones (`--speculate`); all 0 without.
    #[serde(default)]
    pub drafts: u64,
    #[serde(default)]
    pub drafted: u64,
    #[serde(default)]
    pub accepted: u64,
}

impl SpeedCounters {
    /// Tokens that a text's step with a draft brought on average; `None` where nothing was drafted.
    pub fn accepted_length(&self) -> Option<f64> {
        (self.drafts > 0).then(|| (self.accepted + self.drafts) as f64 / self.drafts as f64)
    }
}

/// The K/V that a claim keeps: what a thought costs as long as it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldKv {
    /// Tokens of its path.
    pub tokens: u32,
    /// Those that no other branch needs.
    pub own: u32,
    /// Those whose K/V is on the device, by the share of each that is, while the rest is in RAM; `None`: all of it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub here: Option<u32>,
    /// Those whose K/V was crossing the link between the two when this was told, counted likewise; `None`: there is but
    /// one tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moving: Option<u32>,
}

/// What "the last moments" of [`SpeedCounters::tokens_per_second`] are.
pub(super) const MOMENTS: Duration = Duration::from_secs(2);

/// The worker's own counts: plain additions, no lock, no device call.
pub(super) struct Meter {
    page_bytes: u64,
    /// Bytes of one row of a K/V head's partial results, over all layers.
    partial_row_bytes: u64,
    prefix_lookups: u64,
    prefix_hits: u64,
    /// Tokens evicted from trees that are gone.
    evicted_before: u64,
    io: IoCounters,
    speed: SpeedCounters,
    /// When a step ended, and its rows.
    recent: VecDeque<(Instant, u64)>,
}

impl Meter {
    pub(super) fn new(page_bytes: usize, partial_row_bytes: usize) -> Self {
        Self {
            page_bytes: page_bytes as u64,
            partial_row_bytes: partial_row_bytes as u64,
            prefix_lookups: 0,
            prefix_hits: 0,
            evicted_before: 0,
            io: IoCounters::default(),
            speed: SpeedCounters::default(),
            recent: VecDeque::new(),
        }
    }

    /// Prompt tokens looked up in the tree, and found there.
    pub(super) fn looked_up(&mut self, tokens: usize, found: usize) {
        self.prefix_lookups += tokens as u64;
        self.prefix_hits += found as u64;
    }

    /// The token tree was given up with all it held.
    pub(super) fn forgot(&mut self, kv: &KvStats) {
        self.evicted_before += kv.evicted_tokens + (kv.cached_tokens + kv.live_tokens) as u64;
    }

    /// A plan was made; `io` counts tokens of one layer.
    pub(super) fn planned(&mut self, took: Duration, io: &Io) {
        let token_bytes = self.page_bytes / PAGE_TOKENS as u64;
        self.io.kv_bytes += io.kv_tokens * token_bytes;
        self.io.radix_bytes += io.radix_tokens * token_bytes;
        self.io.partial_bytes += io.partial_rows * self.partial_row_bytes;
        self.speed.plan_seconds += took.as_secs_f64();
    }

    /// A step of so many rows ended; `times` are the device's, since it was made.
    pub(super) fn stepped(&mut self, began: Instant, rows: usize, times: Times) {
        self.speed.steps += 1;
        self.speed.rows += rows as u64;
        self.speed.step_seconds += began.elapsed().as_secs_f64();
        self.speed.attention_seconds = times.attention;
        self.speed.products_seconds = times.products;
        self.recent.push_back((Instant::now(), rows as u64));
        // The front stays as the moment from which the rows after it are counted.
        while self.recent.get(1).is_some_and(|(at, _)| at.elapsed() > MOMENTS) {
            self.recent.pop_front();
        }
    }

    /// When the last step ended.
    pub(super) fn stepped_at(&self) -> Option<Instant> {
        self.recent.back().map(|(at, _)| *at)
    }

    /// One row's logits were sampled from, or not.
    pub(super) fn sampled(&mut self, sampled: bool) {
        self.speed.sampled += u64::from(sampled);
    }

    /// A draft of so many tokens was verified.
    pub(super) fn verified(&mut self, drafted: usize, accepted: usize) {
        self.speed.drafts += 1;
        self.speed.drafted += drafted as u64;
        self.speed.accepted += accepted as u64;
    }

    /// The device's link counts since it was made; there is none where all of K/V lies in one tier.
    pub(super) fn counters(&self, kv: &KvStats, device: &dyn Device) -> Counters {
        let rows: u64 = self.recent.iter().skip(1).map(|&(_, rows)| rows).sum();
        let span = match (self.recent.front(), self.recent.back()) {
            (Some((first, _)), Some((last, _))) => last.duration_since(*first).as_secs_f64(),
            _ => 0.0,
        };
        let tokens_per_second = if span > 0.0 { rows as f64 / span } else { 0.0 };
        Counters {
            kv: Some(KvCounters {
                pages_total: kv.pages as u64,
                pages_live: kv.live_pages as u64,
                pages_cached: kv.cached_pages as u64,
                page_bytes: self.page_bytes,
                tokens_stored: kv.live_tokens as u64,
                tokens_logical: kv.path_tokens as u64,
                evicted_pages: (self.evicted_before + kv.evicted_tokens).div_ceil(PAGE_TOKENS as u64),
                prefix_hits: self.prefix_hits,
                prefix_lookups: self.prefix_lookups,
            }),
            io: Some(self.io),
            link: Some(device.link().map_or_else(LinkCounters::default, LinkCounters::from)),
            speed: Some(SpeedCounters { tokens_per_second, ..self.speed }),
            note: device.note().map(str::to_string),
        }
    }
}
