//! The truth that the forward pass is compared with: dense, f64, no cache, no batch, no tree. Also small random models
//! and steps made by hand, for tests of whoever needs a model that runs in a moment.

use crate::attention::{Method, Parallel, Planner, QueryRow};
use crate::base::rng::stream;
use crate::device::cpu::{CpuDevice, CpuOptions};
use crate::device::head::HeadRow;
use crate::device::weight::{Bytes, LayerWeights, Weight, Weights};
use crate::device::{Rope, RopeLayout, Shape, Step};
use crate::kv::{BranchId, TokenTree};
use crate::model::llama::Llama;
use candle_core::quantized::{GgmlDType, gguf_file};
use rand::Rng;
use std::path::Path as FilePath;
use std::sync::Arc;

/// Logits `[vocab]` at every position of `tokens`.
pub fn logits(weights: &Weights, tokens: &[u32]) -> Vec<Vec<f64>> {
    let shape = &weights.shape;
    let Shape { hidden, heads, kv_heads, head_size: d, .. } = *shape;
    let embed = weights.embed.dequantise().unwrap();
    let mut xs: Vec<Vec<f64>> =
        tokens.iter().map(|&t| embed[t as usize * hidden..][..hidden].iter().map(|&e| e as f64).collect()).collect();
    for layer in &weights.layers {
        let matrix = |w: &Weight| w.dequantise().unwrap();
        let (wq, wk, wv, wo) = (matrix(&layer.wq), matrix(&layer.wk), matrix(&layer.wv), matrix(&layer.wo));
        let (gate, up, down) = (matrix(&layer.gate), matrix(&layer.up), matrix(&layer.down));
        let mut q = Vec::new();
        let (mut k, mut v) = (Vec::new(), Vec::new());
        for (position, x) in xs.iter().enumerate() {
            let n = norm(x, &layer.attn_norm, shape.norm_eps);
            q.push(turn(times(&wq, &n), position, shape));
            k.push(turn(times(&wk, &n), position, shape));
            v.push(times(&wv, &n));
        }
        for (position, x) in xs.iter_mut().enumerate() {
            let mut o = vec![0f64; heads * d];
            for head in 0..heads {
                let kv_head = head / (heads / kv_heads);
                let part = |row: &Vec<f64>, head: usize| row[head * d..(head + 1) * d].to_vec();
                let query = part(&q[position], head);
                let scores: Vec<f64> =
                    (0..=position).map(|p| dot(&query, &part(&k[p], kv_head)) / (d as f64).sqrt()).collect();
                let most = scores.iter().copied().fold(f64::MIN, f64::max);
                let total: f64 = scores.iter().map(|s| (s - most).exp()).sum();
                for (p, score) in scores.iter().enumerate() {
                    let weight = (score - most).exp() / total;
                    for (o, v) in o[head * d..].iter_mut().zip(part(&v[p], kv_head)) {
                        *o += weight * v;
                    }
                }
            }
            add(x, &times(&wo, &o));
            let n = norm(x, &layer.mlp_norm, shape.norm_eps);
            let gated: Vec<f64> =
                times(&gate, &n).iter().zip(times(&up, &n)).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            add(x, &times(&down, &gated));
        }
    }
    let output = weights.output.as_ref().map_or(embed, |w| w.dequantise().unwrap());
    xs.iter().map(|x| times(&output, &norm(x, &weights.norm, shape.norm_eps))).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn times(matrix: &[f32], x: &[f64]) -> Vec<f64> {
    matrix.chunks_exact(x.len()).map(|row| row.iter().zip(x).map(|(&w, x)| w as f64 * x).sum()).collect()
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

fn norm(x: &[f64], weight: &[f32], eps: f32) -> Vec<f64> {
    let scale = 1.0 / (dot(x, x) / x.len() as f64 + eps as f64).sqrt();
    x.iter().zip(weight).map(|(x, &w)| x * scale * w as f64).collect()
}

fn turn(mut x: Vec<f64>, position: usize, shape: &Shape) -> Vec<f64> {
    let d = shape.head_size;
    for head in x.chunks_exact_mut(d) {
        for i in 0..d / 2 {
            let factor = shape.rope.factors.as_ref().map_or(1.0, |f| f[i] as f64);
            let angle = position as f64 * (shape.rope.theta as f64).powf(-2.0 * i as f64 / d as f64) / factor;
            let (a, b) = match shape.rope.layout {
                RopeLayout::Interleaved => (2 * i, 2 * i + 1),
                RopeLayout::Halves => (i, i + d / 2),
            };
            let (sin, cos) = angle.sin_cos();
            (head[a], head[b]) = (head[a] * cos - head[b] * sin, head[a] * sin + head[b] * cos);
        }
    }
    x
}

/// A small shape; `hidden` and `feed_forward` must be multiples of the weight type's block.
pub fn small_shape(layout: RopeLayout) -> Shape {
    Shape {
        layers: 2,
        hidden: 64,
        heads: 4,
        kv_heads: 2,
        head_size: 16,
        feed_forward: 96,
        vocab: 70,
        context: 512,
        norm_eps: 1e-5,
        rope: Rope { theta: 10_000.0, factors: None, layout },
    }
}

/// A random model whose logits spread over a few units. `kinds` are given to the matrices in turn.
pub fn random_weights(shape: &Shape, kinds: &[GgmlDType], tied: bool, seed: u64) -> Weights {
    let mut random = stream(seed, "random weights", &[]);
    let mut count = 0;
    let (h, q, kv) = (shape.hidden, shape.heads * shape.head_size, shape.kv_heads * shape.head_size);
    let mut matrix = |rows: usize, cols: usize| {
        let size = (3.0 / cols as f32).sqrt() * 1.5;
        let numbers: Vec<f32> = (0..rows * cols).map(|_| (random.random::<f32>() * 2.0 - 1.0) * size).collect();
        count += 1;
        Weight::quantise(kinds[count % kinds.len()], rows, cols, &numbers).unwrap()
    };
    let gains = |n: usize| (0..n).map(|i| 0.75 + (i % 5) as f32 / 8.0).collect::<Vec<f32>>();
    Weights {
        embed: matrix(shape.vocab, h),
        layers: (0..shape.layers)
            .map(|_| LayerWeights {
                attn_norm: gains(h),
                wq: matrix(q, h),
                wk: matrix(kv, h),
                wv: matrix(kv, h),
                wo: matrix(h, q),
                mlp_norm: gains(h),
                gate: matrix(shape.feed_forward, h),
                up: matrix(shape.feed_forward, h),
                down: matrix(h, shape.feed_forward),
            })
            .collect(),
        norm: gains(h),
        output: (!tied).then(|| matrix(shape.vocab, h)),
        shape: shape.clone(),
    }
}

/// A model on the CPU with a token tree, driven by hand.
pub struct Session {
    pub llama: Llama,
    pub tree: TokenTree,
    pub planner: Planner,
    /// Whether rows that come alone select what they attend to.
    pub selecting: bool,
}

impl Session {
    pub fn new(weights: &Weights, options: CpuOptions, method: Method) -> Self {
        let device = CpuDevice::new(weights.clone(), options).unwrap();
        let Shape { heads, kv_heads, .. } = weights.shape;
        let parallel = Parallel { threads: options.threads, kv_heads, group: heads / kv_heads };
        let planner = Planner::with_parallel(method, parallel);
        let llama = Llama::new(Box::new(device), weights.shape.layers);
        Self { llama, tree: TokenTree::new(options.pages), planner, selecting: false }
    }

    /// Appends tokens to branches and runs them as one step; logits of every row in order.
    pub fn step(&mut self, parts: &[(BranchId, &[u32])]) -> Vec<Vec<f32>> {
        let rows = parts.iter().map(|(_, ids)| ids.len()).sum();
        self.run(parts, &(0..rows).collect::<Vec<_>>())
    }

    /// As `step`, with the logits of the last row only.
    pub fn step_last(&mut self, parts: &[(BranchId, &[u32])]) -> Vec<f32> {
        let rows: usize = parts.iter().map(|(_, ids)| ids.len()).sum();
        self.run(parts, &[rows - 1]).remove(0)
    }

    fn run(&mut self, parts: &[(BranchId, &[u32])], wanted: &[usize]) -> Vec<Vec<f32>> {
        let mut rows = Vec::new();
        let (mut tokens, mut slots) = (Vec::new(), Vec::new());
        for &(branch, ids) in parts {
            let from = self.tree.len(branch);
            self.tree.append(branch, ids, &mut slots).unwrap();
            tokens.extend_from_slice(ids);
            rows.extend((from..from + ids.len()).map(|p| QueryRow { branch, position: p as u32 }));
        }
        let positions: Vec<u32> = rows.iter().map(|r| r.position).collect();
        let work = self.planner.plan(&self.tree, &rows);
        let wanted: Vec<_> = wanted.iter().map(|&row| HeadRow::all(row)).collect();
        let alone = |&(_, ids): &(BranchId, &[u32])| std::iter::repeat_n(self.selecting && ids.len() == 1, ids.len());
        let selects: Vec<bool> = parts.iter().flat_map(alone).collect();
        let step = Step { tokens: &tokens, positions: &positions, slots: &slots, work, selects: &selects };
        let mut out = Vec::new();
        self.llama.forward(&step, &wanted, &mut out).unwrap();
        out.into_iter().map(|said| said.logits().unwrap().to_vec()).collect()
    }

    /// A new branch with one sequence, run in parts of the given lengths; logits of every position.
    pub fn sequence(&mut self, tokens: &[u32], parts: &[usize]) -> Vec<Vec<f32>> {
        let branch = self.tree.open();
        let mut out = Vec::new();
        let mut rest = tokens;
        for &len in parts {
            let (part, after) = rest.split_at(len);
            out.extend(self.step(&[(branch, part)]));
            rest = after;
        }
        assert!(rest.is_empty(), "parts {parts:?} of {} tokens", tokens.len());
        out
    }
}

/// Weights of a GGUF file of the Llama family, read without any of the checks that a user's file needs.
pub fn read_gguf(path: &FilePath) -> Weights {
    let file = std::fs::File::open(path).unwrap();
    // SAFETY: test files do not change while they are read.
    let map = Arc::new(unsafe { memmap2::Mmap::map(&file) }.unwrap());
    let content = gguf_file::Content::read(&mut std::io::Cursor::new(&map[..])).unwrap();
    let number = |key: &str| content.metadata.get(&format!("llama.{key}")).and_then(|v| v.to_u32().ok());
    let real = |key: &str| content.metadata.get(&format!("llama.{key}")).and_then(|v| v.to_f32().ok());
    let matrix = |name: &str| {
        let info = content.tensor_infos.get(name)?;
        let (rows, cols) = info.shape.dims2().unwrap();
        let from = (content.tensor_data_offset + info.offset) as usize;
        let len = rows * cols / info.ggml_dtype.block_size() * info.ggml_dtype.type_size();
        let bytes = Bytes::Mapped { file: map.clone(), range: from..from + len };
        Some(Weight { kind: info.ggml_dtype, rows, cols, bytes })
    };
    let gains = |name: &str| {
        let info = &content.tensor_infos[name];
        let from = (content.tensor_data_offset + info.offset) as usize;
        map[from..][..4 * info.shape.elem_count()]
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect::<Vec<f32>>()
    };
    let embed = matrix("token_embd.weight").unwrap();
    let heads = number("attention.head_count").unwrap() as usize;
    let layers = number("block_count").unwrap() as usize;
    let shape = Shape {
        layers,
        hidden: embed.cols,
        heads,
        kv_heads: number("attention.head_count_kv").map_or(heads, |n| n as usize),
        head_size: embed.cols / heads,
        feed_forward: number("feed_forward_length").unwrap() as usize,
        vocab: embed.rows,
        context: number("context_length").unwrap() as usize,
        norm_eps: real("attention.layer_norm_rms_epsilon").unwrap(),
        rope: Rope {
            theta: real("rope.freq_base").unwrap_or(10_000.0),
            factors: None,
            layout: RopeLayout::Interleaved,
        },
    };
    let layer = |l: usize| {
        let m = |name: &str| matrix(&format!("blk.{l}.{name}.weight")).unwrap();
        LayerWeights {
            attn_norm: gains(&format!("blk.{l}.attn_norm.weight")),
            wq: m("attn_q"),
            wk: m("attn_k"),
            wv: m("attn_v"),
            wo: m("attn_output"),
            mlp_norm: gains(&format!("blk.{l}.ffn_norm.weight")),
            gate: m("ffn_gate"),
            up: m("ffn_up"),
            down: m("ffn_down"),
        }
    };
    Weights {
        layers: (0..layers).map(layer).collect(),
        norm: gains("output_norm.weight"),
        output: matrix("output.weight"),
        embed,
        shape,
    }
}

/// Weights of a folder from Transformers, read as `read_gguf` does.
pub fn read_folder(folder: &FilePath) -> Weights {
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let number = |key: &str| config[key].as_u64().unwrap() as usize;
    let mut tensors = std::collections::HashMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            tensors.extend(candle_core::safetensors::load(path, &candle_core::Device::Cpu).unwrap());
        }
    }
    let numbers = |name: &str| -> Vec<f32> {
        let tensor = tensors[name].to_dtype(candle_core::DType::F32).unwrap();
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    };
    let matrix = |name: &str| {
        let (rows, cols) = tensors.get(name)?.dims2().unwrap();
        Some(Weight::quantise(GgmlDType::F32, rows, cols, &numbers(name)).unwrap())
    };
    let (hidden, heads) = (number("hidden_size"), number("num_attention_heads"));
    let shape = Shape {
        layers: number("num_hidden_layers"),
        hidden,
        heads,
        kv_heads: number("num_key_value_heads"),
        head_size: hidden / heads,
        feed_forward: number("intermediate_size"),
        vocab: number("vocab_size"),
        context: number("max_position_embeddings"),
        norm_eps: config["rms_norm_eps"].as_f64().unwrap() as f32,
        rope: Rope { theta: config["rope_theta"].as_f64().unwrap() as f32, factors: None, layout: RopeLayout::Halves },
    };
    let layer = |l: usize| {
        let name = |part: &str| format!("model.layers.{l}.{part}.weight");
        let m = |part: &str| matrix(&name(part)).unwrap();
        LayerWeights {
            attn_norm: numbers(&name("input_layernorm")),
            wq: m("self_attn.q_proj"),
            wk: m("self_attn.k_proj"),
            wv: m("self_attn.v_proj"),
            wo: m("self_attn.o_proj"),
            mlp_norm: numbers(&name("post_attention_layernorm")),
            gate: m("mlp.gate_proj"),
            up: m("mlp.up_proj"),
            down: m("mlp.down_proj"),
        }
    };
    Weights {
        embed: matrix("model.embed_tokens.weight").unwrap(),
        layers: (0..shape.layers).map(layer).collect(),
        norm: numbers("model.norm.weight"),
        output: matrix("lm_head.weight"),
        shape,
    }
}
