//! Group quantisation of K/V to four bits (FlexGen, ICML 2023): of each group of 64 numbers of one token and head the
//! smallest, and a step of a fifteenth of their range, both in float16.

use half::f16;

/// Numbers of a group; a row of fewer is one.
pub const GROUP: usize = 64;

/// Bytes of `numbers` numbers that come in rows of `d`.
pub fn bytes(numbers: usize, d: usize) -> usize {
    let groups = numbers / d * d.div_ceil(GROUP);
    numbers.div_ceil(2) + groups * 2 * size_of::<f16>()
}

/// What comes out of packing and unpacking a row.
pub fn round(row: &mut [f32]) {
    for group in row.chunks_mut(GROUP) {
        let (least, most) = group.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), &x| (a.min(x), b.max(x)));
        let least = f16::from_f32(least).to_f32();
        let step = f16::from_f32((most - least) / 15.0).to_f32();
        for x in group {
            let code = if step > 0.0 { ((*x - least) / step).round().clamp(0.0, 15.0) } else { 0.0 };
            *x = least + code * step;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::rng::stream;
    use rand::Rng;

    #[test]
    fn numbers_move_by_half_a_step_at_most_and_take_sixteen_values() {
        let mut random = stream(1, "int4", &[]);
        for d in [8, 64, 96] {
            let row: Vec<f32> = (0..d).map(|_| random.random_range(-3.0..5.0)).collect();
            let mut rounded = row.clone();
            round(&mut rounded);
            for (before, after) in row.chunks(GROUP).zip(rounded.chunks(GROUP)) {
                let range = before.iter().fold(0f32, |a, x| a.max(*x)) - before.iter().fold(0f32, |a, x| a.min(*x));
                assert!(before.iter().zip(after).all(|(a, b)| (a - b).abs() <= range / 30.0 + 5e-3), "{d}");
                let mut values: Vec<u32> = after.iter().map(|x| x.to_bits()).collect();
                values.sort_unstable();
                values.dedup();
                assert!(values.len() <= 16 && (d < 64 || values.len() > 8), "{values:?}");
            }
        }
        let mut flat = [2.0; 8];
        round(&mut flat);
        assert_eq!(flat, [2.0; 8]);
        assert_eq!((bytes(128, 64), bytes(96, 96)), (64 + 8, 48 + 8));
    }
}
