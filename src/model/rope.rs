//! Divisors of the rotary frequencies of models that were stretched to a longer context.
//!
//! Formulas as in Transformers' `modeling_rope_utils.py`; refuses nothing: which scheme a file names is checked by
//! `config`.

/// Llama 3.1's scheme: long wavelengths are divided by `factor`, short ones kept, those between blended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Llama3 {
    pub factor: f64,
    pub low_freq_factor: f64,
    pub high_freq_factor: f64,
    pub original_context: f64,
}

impl Llama3 {
    /// The divisor of each of the `head_size / 2` frequencies `theta^(-2i / head_size)`.
    pub fn factors(&self, theta: f64, head_size: usize) -> Vec<f32> {
        let low_wavelength = self.original_context / self.low_freq_factor;
        let high_wavelength = self.original_context / self.high_freq_factor;
        (0..head_size / 2)
            .map(|i| {
                let frequency = theta.powf(-2.0 * i as f64 / head_size as f64);
                let wavelength = 2.0 * std::f64::consts::PI / frequency;
                let divisor = if wavelength < high_wavelength {
                    1.0
                } else if wavelength > low_wavelength {
                    self.factor
                } else {
                    let smooth = (self.original_context / wavelength - self.low_freq_factor)
                        / (self.high_freq_factor - self.low_freq_factor);
                    1.0 / ((1.0 - smooth) / self.factor + smooth)
                };
                divisor as f32
            })
            .collect()
    }
}

/// Linear scaling: positions are divided by `factor`, which is every frequency divided by it.
pub fn linear(factor: f64, head_size: usize) -> Vec<f32> {
    vec![factor as f32; head_size / 2]
}

/// Two sets of divisors, one after the other.
pub fn combine(first: Option<Vec<f32>>, second: Option<Vec<f32>>) -> Option<Vec<f32>> {
    match (first, second) {
        (Some(a), Some(b)) => Some(a.iter().zip(&b).map(|(x, y)| x * y).collect()),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_3_1_keeps_short_waves_and_divides_long_ones() {
        // Llama 3.1: head size 128, theta 500,000. Wavelength 2048 and 8192 bound the blend.
        let scheme = Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 8192.0 };
        let factors = scheme.factors(500_000.0, 128);
        assert_eq!(factors.len(), 64);
        // First blended index: 2*pi*500000^(i/64) > 2048 => i > 28.2; last: > 8192 => i > 34.98.
        assert!(factors[..=28].iter().all(|&f| f == 1.0), "{factors:?}");
        assert!(factors[35..].iter().all(|&f| f == 8.0), "{factors:?}");
        assert!(factors[29..35].windows(2).all(|w| 1.0 < w[0] && w[0] < w[1] && w[1] < 8.0), "{factors:?}");
        // By hand at i = 32: frequency 500000^-0.5, wavelength 4442.88, smooth (1.843848 - 1) / 3 = 0.281283.
        assert!((f64::from(factors[32]) - 1.0 / (0.718_717 / 8.0 + 0.281_283)).abs() < 1e-4, "{}", factors[32]);
    }

    #[test]
    fn divisors_multiply() {
        assert_eq!(combine(Some(vec![2.0, 3.0]), Some(linear(4.0, 4))), Some(vec![8.0, 12.0]));
        assert_eq!(combine(None, Some(vec![1.0])), Some(vec![1.0]));
        assert_eq!(combine(None, None), None);
    }
}
