//! What both devices check before they compute: sizes that fit each other, and steps that stay inside their places.

use super::head::HeadRow;
use super::weight::Weight;
use super::{Shape, Step};
use crate::base::{Error, Result};
use crate::kv::PAGE_TOKENS;

/// Refuses sizes of a model that do not fit each other.
pub fn check_shape(shape: &Shape, layers: usize) -> Result<()> {
    let refuse = |what: String| Err(Error::input(format!("this model cannot be run: {what}")));
    let Shape { heads, kv_heads, head_size, .. } = *shape;
    if layers != shape.layers {
        return refuse(format!("{} layers are announced and {layers} given", shape.layers));
    }
    if [shape.layers, shape.hidden, shape.vocab, shape.feed_forward, heads, kv_heads, head_size].contains(&0) {
        return refuse("one of its sizes is 0".into());
    }
    if !heads.is_multiple_of(kv_heads) {
        return refuse(format!("{heads} heads do not share {kv_heads} K/V heads evenly"));
    }
    if !head_size.is_multiple_of(2) {
        return refuse(format!("a head size of {head_size} is odd"));
    }
    if shape.rope.factors.as_ref().is_some_and(|f| f.len() != head_size / 2) {
        return refuse(format!("RoPE factors do not number {}", head_size / 2));
    }
    Ok(())
}

/// Refuses a matrix of other sizes than the model has.
pub fn check_size(name: &str, weight: &Weight, rows: usize, cols: usize) -> Result<()> {
    if (weight.rows, weight.cols) == (rows, cols) {
        return Ok(());
    }
    Err(Error::input(format!(
        "{name} is [{}, {}], not the [{rows}, {cols}] that the model's sizes ask for",
        weight.rows, weight.cols
    )))
}

/// The weights of a norm, if they number `hidden`.
pub fn check_norm(name: &str, weight: Vec<f32>, hidden: usize) -> Result<Vec<f32>> {
    if weight.len() == hidden {
        return Ok(weight);
    }
    Err(Error::input(format!("{name} has {} numbers, not {hidden}", weight.len())))
}

/// Refuses rows and tokens that are not there: faults of the caller.
pub fn check_head(wanted: &[HeadRow<'_>], rows: usize, vocab: usize) -> Result<()> {
    if let Some(bad) = wanted.iter().find(|w| w.row >= rows) {
        return Err(Error::fault(format!("logits of row {} of a step of {rows} are asked for", bad.row)));
    }
    if wanted.iter().any(|w| w.named().iter().any(|&id| id as usize >= vocab)) {
        return Err(Error::fault(format!("logits of a token outside the vocabulary of {vocab} are asked for")));
    }
    Ok(())
}

/// Refuses what would read or write outside its place: those are faults of the caller, not of a user.
pub fn check_step(step: &Step<'_>, shape: &Shape, pages: usize, sorted: &mut Vec<u64>) -> Result<()> {
    let Step { tokens, positions, slots, work, .. } = *step;
    let n = tokens.len();
    let fault = |what: String| Err(Error::fault(format!("a step that cannot be run: {what}")));
    if positions.len() != n || slots.len() != n || work.order.len() != n || work.positions.len() != n {
        return fault(format!(
            "{n} tokens, {} positions, {} slots, {} rows of work",
            positions.len(),
            slots.len(),
            work.order.len()
        ));
    }
    if let Some(&bad) = tokens.iter().find(|&&t| t as usize >= shape.vocab) {
        return fault(format!("token {bad} of a vocabulary of {}", shape.vocab));
    }
    if let Some(&bad) = positions.iter().find(|&&p| p as usize >= shape.context) {
        return fault(format!("position {bad} of a context of {}", shape.context));
    }
    sorted.clear();
    for (slot, &position) in slots.iter().zip(positions) {
        if slot.page.0 as usize >= pages || slot.offset as usize != position as usize % PAGE_TOKENS {
            return fault(format!("{slot:?} for position {position}, with {pages} pages"));
        }
        sorted.push(u64::from(slot.page.0) << 8 | u64::from(slot.offset));
    }
    sorted.sort_unstable();
    if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        return fault("one K/V slot is written twice".into());
    }
    if let Some(&bad) = work.pages.iter().find(|&&p| p as usize >= pages) {
        return fault(format!("page {bad} of {pages} is to be read"));
    }
    sorted.clear();
    sorted.extend(work.order.iter().map(|&r| u64::from(r)));
    sorted.sort_unstable();
    if sorted.iter().enumerate().any(|(i, &r)| i as u64 != r) {
        return fault("its work does not name every row once".into());
    }
    Ok(())
}
