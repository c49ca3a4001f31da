//! A figure over several runs, and whether it says anything.

use serde::{Deserialize, Serialize};

use crate::run::spread;

/// Median and spread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The median.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Figure {
    /// Of some figures; None of none.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let (median, min, max) = spread(figures.into_iter().filter(|it| it.is_finite()))?;
        Some(Self { median: round(median), min: round(min), max: round(max) })
    }
}

/// Four significant digits: more is noise.
fn round(value: f64) -> f64 {
    if value == 0.0 {
        return 0.0;
    }
    let scale = 10f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

/// What a ratio of paired runs says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Better than what it is compared with.
    Better,
    /// Worse.
    Worse,
    /// The spread is wider than the difference.
    NoDifference,
}

/// A ratio of paired runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The ratio itself: above 1 is better.
    #[serde(flatten)]
    pub figure: Figure,
    /// What it says.
    pub verdict: Verdict,
}

impl Ratio {
    /// Of the ratios of pairs; None of none.
    pub fn of(ratios: impl IntoIterator<Item = f64>) -> Option<Self> {
        let figure = Figure::of(ratios)?;
        let difference = figure.median - 1.0;
        let verdict = if figure.max - figure.min >= difference.abs() {
            Verdict::NoDifference
        } else if difference > 0.0 {
            Verdict::Better
        } else {
            Verdict::Worse
        };
        Some(Self { figure, verdict })
    }

    /// For the table.
    pub fn show(&self) -> String {
        let Figure { median, min, max } = self.figure;
        match self.verdict {
            Verdict::NoDifference => format!("no difference ({min:.2}..{max:.2})"),
            _ => format!("{median:.2} ({min:.2}..{max:.2})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_wider_than_the_difference_is_no_difference() {
        let verdict = |ratios: &[f64]| Ratio::of(ratios.iter().copied()).map(|it| it.verdict);
        assert_eq!(verdict(&[2.0, 2.1, 1.9]), Some(Verdict::Better));
        assert_eq!(verdict(&[0.8, 0.81, 0.79]), Some(Verdict::Worse));
        assert_eq!(verdict(&[1.02, 0.95, 1.1]), Some(Verdict::NoDifference));
        assert_eq!(verdict(&[1.0]), Some(Verdict::NoDifference));
        assert_eq!(verdict(&[f64::NAN]), None);
        assert_eq!(Ratio::of([0.98, 1.1, 0.9]).expect("a ratio").show(), "no difference (0.90..1.10)");
    }

    #[test]
    fn figures_have_four_digits() {
        assert_eq!(Figure::of([1234.567]).map(|it| it.median), Some(1235.0));
        assert_eq!(Figure::of([0.001_234_56, 0.0]).map(|it| (it.min, it.max)), Some((0.0, 0.001_235)));
    }
}
