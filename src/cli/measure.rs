//! `totara bench`: measurements as a table, or as JSON lines.

use super::args::{
    BenchAttentionArgs, BenchCommand, BenchDecodeArgs, BenchOffloadArgs, BenchPerplexityArgs, BenchProductsArgs,
    BenchRecordedArgs, BenchScreenArgs, BenchTraceArgs, Common, Switch,
};
use super::ticker::Ticker;
use super::{lm, out, puzzle};
use crate::attention::sample::Number;
use crate::attention::{Method, Parallel};
use crate::base::size::Human;
use crate::base::{Error, Result};
use crate::bench::attention::planning::{PlanTimes, plan_times};
use crate::bench::attention::trees::Shape;
use crate::bench::attention::{self, recorded};
use crate::bench::cuda::{self, Clock, CudaAttention};
use crate::bench::offload::{Case, links, quality};
use crate::bench::{decode, perplexity, products, trace};
use crate::device::cpu::attend::Heads;
use crate::device::cpu::default_threads;
use crate::device::cpu::simd::Simd;
use crate::device::cuda::attend::{AttendKernel, HeadShape, Number as CudaNumber};
use crate::device::cuda::driver::Gpu;
use crate::engine::measure::Spec;
use crate::lm::engine::EngineOptions;
use crate::offload;
use crate::tui;
use candle_core::quantized::GgmlDType;
use serde_json::{json, to_value};

pub fn run(common: &Common, command: &BenchCommand) -> Result<u8> {
    match command {
        BenchCommand::Attention(args) => match common.device.as_str() {
            "auto" | "cpu" => bench_attention(common, args),
            device => bench_cuda(common, args, card(device)?),
        },
        BenchCommand::Decode(args) => bench_decode(common, args),
        BenchCommand::Recorded(args) => bench_recorded(common, args),
        BenchCommand::Products(args) => bench_products(common, args),
        BenchCommand::Screen(args) => bench_screen(common, args),
        BenchCommand::Trace(args) => bench_trace(common, args),
        BenchCommand::Perplexity(args) => bench_perplexity(common, args),
        BenchCommand::Offload(args) => bench_offload(common, args),
    }
}

/// Numbers of a product that is measured, at most: 1 GiB of them.
const MOST_NUMBERS: usize = 1 << 28;

/// Query heads at most; no model has more.
const MOST_HEADS: usize = 1024;

/// The card that `cuda` or `cuda:N` names.
fn card(device: &str) -> Result<usize> {
    let number = device
        .strip_prefix("cuda")
        .map(|rest| rest.strip_prefix(':').unwrap_or(if rest.is_empty() { "0" } else { rest }));
    number
        .and_then(|n| n.parse().ok())
        .ok_or_else(|| Error::input(format!("device `{device}` is unknown: give cpu, cuda or cuda:N")))
}

/// `32/8` as query and K/V heads.
fn heads(text: &str, head_size: usize) -> Result<Heads> {
    let refuse = || {
        Error::input(format!(
            "heads `{text}` are not query heads / K/V heads, the first a multiple of the second and at most {MOST_HEADS} (such \
             as 32/8)"
        ))
    };
    let (q, kv) = text.split_once('/').ok_or_else(refuse)?;
    let (heads, kv_heads): (usize, usize) =
        (q.trim().parse().map_err(|_| refuse())?, kv.trim().parse().map_err(|_| refuse())?);
    if kv_heads == 0 || heads == 0 || heads > MOST_HEADS || !heads.is_multiple_of(kv_heads) {
        return Err(refuse());
    }
    if head_size == 0 || !head_size.is_multiple_of(8) || head_size > 1024 {
        return Err(Error::input(format!("head size {head_size} is not a multiple of 8 up to 1024")));
    }
    Ok(Heads { heads, kv_heads, head_size })
}

fn methods(args: &BenchAttentionArgs) -> Result<Vec<Method>> {
    if args.method.is_empty() {
        return Ok(Method::ALL.to_vec());
    }
    args.method.iter().map(|name| name.parse()).collect()
}

fn bench_attention(common: &Common, args: &BenchAttentionArgs) -> Result<u8> {
    let number = match args.dtype.as_str() {
        "f16" => Number::F16,
        "f32" => Number::F32,
        other => return Err(Error::input(format!("dtype `{other}` is not f16 or f32 (bf16 is for --device cuda)"))),
    };
    if !(args.seconds > 0.0 && args.seconds <= 3600.0) {
        return Err(Error::input(format!("--seconds {}: give a number above 0, up to 3600", args.seconds)));
    }
    let options = attention::Options {
        trees: args.tree.clone(),
        heads: heads(&args.heads, args.head_size)?,
        number,
        methods: methods(args)?,
        threads: common.threads.map_or_else(default_threads, usize::from),
        seconds: args.seconds,
        json: common.json,
    };
    let mut ticker = Ticker::new(common.quiet, "runs");
    attention::run(&options, &mut out::Results, &mut |done, total| ticker.tick(done, total))?;
    Ok(0)
}

fn bench_cuda(common: &Common, args: &BenchAttentionArgs, card: usize) -> Result<u8> {
    let number = match args.dtype.as_str() {
        "f16" => CudaNumber::F16,
        "bf16" => CudaNumber::Bf16,
        other => return Err(Error::input(format!("dtype `{other}` is not f16 or bf16 (f32 is for --device cpu)"))),
    };
    let Heads { heads, kv_heads, head_size } = heads(&args.heads, args.head_size)?;
    let shape = HeadShape { heads: heads as u32, kv_heads: kv_heads as u32, head_size: head_size as u32, number };
    let clock = match args.graph_layers {
        0 => Clock::Launches(200),
        1 => Clock::OneCall,
        layers => Clock::Layers(layers),
    };
    let methods = methods(args)?;
    // As where a model asks for a card: what is missing is the user's to mend.
    let gpu = Gpu::open(card).map_err(|e| Error::input(e.message()))?;
    let copy = cuda::copy_bandwidth(&gpu)?;
    if !common.json {
        out::line(&format!(
            "{}, {heads} query / {kv_heads} K/V heads of {head_size}, {}; copy {:.0} GB/s; {}",
            gpu.name,
            args.dtype,
            copy / 1e9,
            clock.describe()
        ))?;
    }
    for spec in &args.tree {
        let tree = Shape::read(spec)?;
        let nodes: Vec<_> = tree.nodes.iter().map(|n| (n.parent.map(|p| p as u32), n.tokens as u32)).collect();
        let queries = (0..).zip(&tree.nodes).filter(|(_, n)| n.query).map(|(i, _)| i).collect();
        let options =
            CudaAttention { tree: tree.name.clone(), nodes, queries, shape, paged: !args.unpaged, clock, repeats: 30 };
        let rows = cuda::attention(&gpu, &options, &methods)?;
        let machine = *AttendKernel::new(&gpu, shape, None)?.machine();
        let radix = rows.iter().find(|r| r.method == Method::Radix).map(|r| r.median_us);
        if !common.json {
            out::line(&format!(
                "\n{}  ({:.1} MB of K/V on its paths)",
                tree.name,
                rows.first().map_or(0.0, |r| r.unique_bytes as f64 / 1e6)
            ))?;
            out::line(&format!(
                "{:<16} {:>10} {:>21} {:>10} {:>12} {:>9} {:>8} {:>9} {:>10} {:>8} {:>8} {:>8}",
                "method",
                "median us",
                "least-most us",
                "K/V MB",
                "partials MB",
                "of copy",
                "x radix",
                "error",
                "plan us",
                "next us",
                "fork us",
                "prune us"
            ))?;
        }
        for row in &rows {
            // Copy bandwidth counts bytes read and written; a reader moves half of what a copy does in the same time.
            let share = row.unique_bytes as f64 / (row.median_us * 1e-6) / copy;
            let times_radix = radix.map(|r| r / row.median_us);
            // Those that an engine may use plan step by step.
            let live = row.method.is_live();
            let planning =
                live.then(|| plan_times(row.method, Parallel::default(), &tree, Some(&machine))).transpose()?;
            if common.json {
                out::json(&json!({
                    "method": row.method.name(), "tree": row.tree, "median_us": row.median_us, "kv_bytes": row.kv_bytes,
                    "partial_bytes": row.partial_bytes, "least_us": row.least_us, "most_us": row.most_us,
                    "unique_bytes": row.unique_bytes, "mask_bytes": row.mask_bytes, "query_and_output_bytes": row.query_bytes,
                    "share_of_copy": share, "times_radix": times_radix, "error": row.error, "clock": clock.describe(),
                    "plan_us": planning.map(|p| p.anew), "next_plan_us": planning.map(|p| p.grown),
                    "fork_plan_us": planning.map(|p| p.forked), "prune_plan_us": planning.map(|p| p.pruned),
                }))?;
            } else {
                let ratio = times_radix.map_or("-".to_string(), |x| format!("{x:.2}"));
                let us = |of: fn(PlanTimes) -> f64| planning.map_or("-".into(), |p| format!("{:.0}", of(p)));
                out::line(&format!(
                    "{:<16} {:>10.1} {:>10.1}-{:<10.1} {:>10.1} {:>12.1} {:>8.0}% {ratio:>8} {:>9.1e} {:>10} {:>8} {:>8} {:>8}",
                    row.method.name(),
                    row.median_us,
                    row.least_us,
                    row.most_us,
                    row.kv_bytes as f64 / 1e6,
                    row.partial_bytes as f64 / 1e6,
                    100.0 * share,
                    row.error,
                    us(|p| p.anew),
                    us(|p| p.grown),
                    us(|p| p.forked),
                    us(|p| p.pruned)
                ))?;
            }
        }
    }
    Ok(0)
}

fn bench_recorded(common: &Common, args: &BenchRecordedArgs) -> Result<u8> {
    let heads = heads(&args.heads, args.head_size)?;
    let threads = common.threads.map_or_else(default_threads, usize::from);
    recorded::run(&args.folder, heads, args.layers, threads, common.json, &mut out::Results)?;
    Ok(0)
}

fn bench_products(common: &Common, args: &BenchProductsArgs) -> Result<u8> {
    const KINDS: [GgmlDType; 5] = [GgmlDType::Q4_0, GgmlDType::Q4_1, GgmlDType::Q8_0, GgmlDType::Q4K, GgmlDType::F32];
    let threads = common.threads.map_or_else(default_threads, usize::from);
    if !args.cols.is_multiple_of(32) {
        return Err(Error::input(format!("--cols {}: give a multiple of 32", args.cols)));
    }
    // The weights before they are packed, and the largest input with its output.
    let count = args.counts.iter().copied().max().unwrap_or(0);
    let numbers = args.rows * args.cols + count * (args.rows + args.cols);
    if numbers > MOST_NUMBERS {
        return Err(Error::input(format!(
            "{} x {} weights and {count} rows are {numbers} numbers; {MOST_NUMBERS} can be measured",
            args.rows, args.cols
        )));
    }
    // Types whose blocks do not divide a row of this size are left out.
    let kinds: Vec<_> = KINDS.into_iter().filter(|kind| args.cols.is_multiple_of(kind.block_size())).collect();
    let speeds = products::measure(Simd::best(), threads, &kinds, (args.rows, args.cols), &args.counts)?;
    if !common.json {
        out::line(&format!(
            "{:<14} {:<6} {:<11} {:>16} {:>6} {:>10} {:>9}",
            "kernels", "type", "activations", "weights", "rows", "G MAC/s", "of peak"
        ))?;
    }
    for s in speeds {
        let (rows, cols, count) = s.shape;
        if common.json {
            out::json(
                &json!({"kernels": s.simd, "type": s.kind, "activations": format!("{:?}", s.activations).to_lowercase(), "weight_rows": rows, "weight_cols": cols, "rows": count, "giga_macs": s.giga_macs, "share_of_peak": s.share}),
            )?;
        } else {
            let activations = format!("{:?}", s.activations).to_lowercase();
            out::line(&format!(
                "{:<14} {:<6} {activations:<11} {:>16} {count:>6} {:>10.1} {:>8.0}%",
                s.simd,
                s.kind,
                format!("{rows}x{cols}"),
                s.giga_macs,
                100.0 * s.share
            ))?;
        }
    }
    Ok(0)
}

/// One row a number of branches; the model is loaded anew for each, so that peak memory is that row's own.
fn bench_decode(common: &Common, args: &BenchDecodeArgs) -> Result<u8> {
    let options = EngineOptions { graphs: args.graphs == Switch::On, ..lm::engine_options(common)? };
    for (i, &branches) in args.branches.iter().enumerate() {
        let spec = Spec { prompt: args.prompt, branches, own: args.own, steps: args.steps, seed: common.seed };
        let mut ticker = Ticker::new(common.quiet, "tokens");
        let model = lm::model(common, &lm::Told::new(common))?;
        let report = decode::decode(model, &options, &spec, &mut |done, total| ticker.tick(done, total))?;
        if common.json {
            out::json(&to_value(&report).map_err(|e| Error::fault(e.to_string()))?)?;
            continue;
        }
        if i == 0 {
            out::line(&format!("{}, {}, attention {}", report.model, report.device, report.method))?;
            out::line(decode::DecodeReport::HEAD)?;
        }
        out::line(report.to_string().trim_end())?;
    }
    Ok(0)
}

fn bench_screen(common: &Common, args: &BenchScreenArgs) -> Result<u8> {
    let size =
        args.size.split_once(['x', 'X']).and_then(|(w, h)| Some((w.trim().parse().ok()?, h.trim().parse().ok()?)));
    let Some((width, height)) = size.filter(|&(w, h): &(u16, u16)| (20..=1000).contains(&w) && (8..=500).contains(&h))
    else {
        return Err(Error::input(format!("size `{}` is not columns x rows, from 20x8 to 1000x500", args.size)));
    };
    let frames = tui::measure(args.thoughts, width, height, args.frames)?;
    for (frame, ms) in [("scroll", &frames.scroll_ms), ("growth", &frames.growth_ms)] {
        let at = |share: f64| ms[((ms.len() - 1) as f64 * share) as usize];
        let (median, p99, worst) = (at(0.5), at(0.99), at(1.0));
        if common.json {
            out::json(&json!({
                "frame": frame, "thoughts": args.thoughts, "width": width, "height": height,
                "median_ms": median, "p99_ms": p99, "worst_ms": worst,
            }))?;
        } else {
            out::line(&format!("{frame:<7} median {median:.2} ms  99 % {p99:.2} ms  worst {worst:.2} ms"))?;
        }
    }
    Ok(0)
}

fn bench_perplexity(common: &Common, args: &BenchPerplexityArgs) -> Result<u8> {
    let from = if args.text == "-" { args.text.clone() } else { format!("@{}", args.text) };
    let text = puzzle::text(&from, "--text")?;
    let options = lm::engine_options(common)?;
    let spec = args.windows.spec();
    let model = lm::model(common, &lm::Told::new(common))?;
    let mut ticker = Ticker::new(common.quiet, "tokens scored");
    let report = perplexity::run(model, &options, &text, &spec, &mut |done, total| ticker.tick(done, total))?;
    ticker.finish();
    if common.json {
        out::json(&to_value(&report).map_err(|e| Error::fault(e.to_string()))?)?;
    } else {
        out::line(&format!("{}, {}", report.model, report.device))?;
        out::line(perplexity::Report::HEAD)?;
        out::line(&report.to_string())?;
    }
    Ok(0)
}

fn bench_offload(common: &Common, args: &BenchOffloadArgs) -> Result<u8> {
    let from = if args.text == "-" { args.text.clone() } else { format!("@{}", args.text) };
    let text = puzzle::text(&from, "--text")?;
    let options = lm::engine_options(common)?;
    let methods = if args.method.is_empty() { &offload::Method::ALL[..] } else { &args.method };
    let cases = Case::list(methods, args.quality && args.looks);
    let model = lm::model(common, &lm::Told::new(common))?;
    if args.quality {
        let share = |&percent: &f64| match percent {
            p if p > 0.0 && p <= 100.0 => Ok(p / 100.0),
            p => Err(Error::input(format!("--shares {p}: give percent above 0 and up to 100"))),
        };
        let shares = args.shares.iter().map(share).collect::<Result<_>>()?;
        let spec = quality::Spec { text: args.windows.spec(), shares, methods: cases };
        let mut ticker = Ticker::new(common.quiet, "tokens scored");
        let (device, rows) = quality::run(model, &options, &text, &spec, &mut |done, total| ticker.tick(done, total))?;
        ticker.finish();
        if !common.json {
            out::line(&device)?;
            out::line(quality::Row::HEAD)?;
        }
        for row in rows {
            match common.json {
                true => out::json(&to_value(&row).map_err(|e| Error::fault(e.to_string()))?)?,
                false => out::line(&row.to_string())?,
            }
        }
        return Ok(0);
    }
    let BenchOffloadArgs { prompt, branches, own, own_text, steps, turns, budget, .. } = *args;
    let budget = budget / 100.0;
    let spec = links::Spec { prompt, branches, own, own_text, steps, turns, budget, seed: common.seed };
    let (mut first, mut last) = (true, String::new());
    let mut ticker = Ticker::new(common.quiet, "tokens of the tree");
    let tick = &mut |done, total| ticker.tick(done, total);
    links::run(model, &options, (&text, &spec, &cases), tick, &mut |device, row| {
        if common.json {
            return out::json(&to_value(row).map_err(|e| Error::fault(e.to_string()))?);
        }
        if std::mem::take(&mut first) {
            out::line(&format!("a tree of {} tokens, {}", row.tree, Human(row.tree_bytes)))?;
            out::line(links::Row::HEAD)?;
        }
        // The link is measured anew with every tier.
        if last != device {
            out::line(device)?;
            last = device.to_string();
        }
        out::line(&row.to_string())
    })?;
    Ok(0)
}

/// One row a file and method; the model is loaded anew for each.
fn bench_trace(common: &Common, args: &BenchTraceArgs) -> Result<u8> {
    if args.runs == 0 || args.steps == Some(0) || args.prompt == 0 {
        return Err(Error::input("bench trace wants at least one run, one step and one prompt token"));
    }
    let options = lm::engine_options(common)?;
    let methods: Vec<Method> = match &args.method[..] {
        [] => vec![options.method],
        names => names.iter().map(|name| Method::live(name)).collect::<Result<_>>()?,
    };
    let recordings: Vec<_> =
        args.files.iter().map(|file| trace::Recording::read(file, args.runs)).collect::<Result<_>>()?;
    let spec = trace::Spec { runs: args.runs, steps: args.steps, prompt: args.prompt, seed: common.seed };
    let mut first = true;
    for recording in &recordings {
        for &method in &methods {
            let model = lm::model(common, &lm::Told::new(common))?;
            let mut ticker = Ticker::new(common.quiet, "iterations");
            let options = EngineOptions { method, ..options.clone() };
            let report = trace::replay(recording, model, &options, &spec, &mut |done, total| ticker.tick(done, total))?;
            ticker.finish();
            if common.json {
                out::json(&to_value(&report).map_err(|e| Error::fault(e.to_string()))?)?;
                continue;
            }
            if std::mem::take(&mut first) {
                out::line(&format!("{}, {}", report.model, report.device))?;
                out::line(trace::Report::HEAD)?;
            }
            out::line(&report.to_string())?;
        }
    }
    Ok(0)
}
