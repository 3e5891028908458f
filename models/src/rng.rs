//! Counter-based random numbers: a pure function of (seed, purpose, index).
//!
//! There is no state to save, split or race for: the same arguments give the same number on every
//! rank, at every world size, after every resume. The mixing function is SplitMix64's finalizer
//! (Steele, Lea, Flood 2014, "Fast splittable pseudorandom number generators").

/// Purpose of random numbers; streams of different purposes are independent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// Initial weights.
    Weights = 1,
    /// Content of the synthetic token stream.
    Tokens = 2,
    /// Order of the sequences of a token file.
    Order = 3,
    /// Tests and benchmarks.
    Test = 4,
    /// Injected faults.
    Fault = 5,
    /// Digests of weights.
    Digest = 6,
}

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A stream of numbers addressed by index.
#[derive(Debug, Clone, Copy)]
pub struct Stream {
    key: u64,
}

impl Stream {
    /// The stream of a seed and a purpose.
    pub fn new(seed: u64, purpose: Purpose) -> Self {
        Self { key: mix(mix(seed.wrapping_add(GOLDEN)) ^ (purpose as u64).wrapping_mul(GOLDEN)) }
    }

    /// An independent stream that is derived from this one.
    pub fn child(self, index: u64) -> Self {
        Self { key: mix(self.bits(index) ^ GOLDEN) }
    }

    /// The independent stream of a name that is derived from this one.
    pub fn named(self, name: &str) -> Self {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&blake3::hash(name.as_bytes()).as_bytes()[..8]);
        self.child(u64::from_le_bytes(bytes))
    }

    /// 64 uniform bits.
    pub fn bits(self, index: u64) -> u64 {
        mix(self.key.wrapping_add(index.wrapping_add(1).wrapping_mul(GOLDEN)))
    }

    /// Uniform in [0, 1), 53 bits.
    pub fn uniform(self, index: u64) -> f64 {
        (self.bits(index) >> 11) as f64 * (1.0 / (1_u64 << 53) as f64)
    }

    /// Uniform in [-1, 1), 53 bits.
    pub fn signed(self, index: u64) -> f64 {
        2.0 * self.uniform(index) - 1.0
    }

    /// Uniform in 0..bound, by multiplication (bias below bound / 2^64).
    pub fn below(self, index: u64, bound: u64) -> u64 {
        ((u128::from(self.bits(index)) * u128::from(bound)) >> 64) as u64
    }

    /// Standard normal: the inverse of its distribution function at one uniform number.
    pub fn normal(self, index: u64) -> f64 {
        let centred = (self.bits(index) >> 11) as f64 - ((1_u64 << 52) as f64 - 0.5); // never 0
        normal_quantile(centred * (1.0 / (1_u64 << 53) as f64))
    }
}

/// The x at which the standard normal's distribution function is 0.5 + `centred`, to seven digits:
/// routine PPND7 of Wichura 1988, "Algorithm AS 241: The Percentage Points of the Normal
/// Distribution". Arithmetic only in 85 of 100 cases, so it is fast.
fn normal_quantile(centred: f64) -> f64 {
    if centred.abs() <= 0.425 {
        let r = 0.180_625 - centred * centred;
        let above = ((59.109_374_720 * r + 159.291_132_02) * r + 50.434_271_938) * r;
        let below = ((67.187_563_600 * r + 78.757_757_664) * r + 17.895_169_469) * r;
        return centred * (above + 3.387_132_717_9) / (below + 1.0);
    }
    let r = (-(0.5 - centred.abs()).ln()).sqrt();
    let size = if r <= 5.0 {
        let r = r - 1.6;
        let above = ((0.170_238_211_03 * r + 1.306_728_481_6) * r + 2.756_815_390_0) * r;
        (above + 1.423_437_277_7) / ((0.120_211_329_75 * r + 0.737_001_642_50) * r + 1.0)
    } else {
        let r = r - 5.0;
        let above = ((0.017_337_203_997 * r + 0.428_682_943_37) * r + 3.081_226_386_0) * r;
        (above + 6.657_905_115_0) / ((0.012_258_202_635 * r + 0.241_978_942_25) * r + 1.0)
    };
    size.copysign(centred)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changing any of these changes every workload's result: they are part of the workload.
    #[test]
    fn numbers_are_frozen() {
        let stream = Stream::new(42, Purpose::Weights);
        let bits = [0, 1, 1 << 40, u64::MAX].map(|index| stream.bits(index));
        let expected = [
            0x5541_7331_F90C_3204,
            0x2B2F_BCC3_BDE9_946F,
            0x36D2_CA2E_0874_A93C,
            0xCEF3_4101_C7B3_D61A,
        ];
        assert_eq!(bits, expected);
        assert_eq!(stream.child(7).bits(0), 0x03B7_9071_8ABC_7B41);
        assert_eq!(stream.uniform(0), 0.333_029_937_458_420_7);
        assert_eq!(stream.below(0, 1000), 333);
        let normals = [0, 1, 2].map(|index| stream.normal(index) as f32);
        assert_eq!(normals, [-0.431_561_86, -0.959_326_4, 0.140_234_1]);
    }

    #[test]
    fn seeds_purposes_children_and_indices_differ() {
        let purposes = [
            Purpose::Weights,
            Purpose::Tokens,
            Purpose::Order,
            Purpose::Test,
            Purpose::Fault,
            Purpose::Digest,
        ];
        let mut seen = std::collections::BTreeSet::new();
        let mut count = 0;
        for seed in [0, 1, 2, u64::MAX] {
            for purpose in purposes {
                let stream = Stream::new(seed, purpose);
                for stream in [stream, stream.child(0), stream.child(1), stream.child(0).child(0)] {
                    seen.extend((0..50).map(|index| stream.bits(index)));
                    count += 50;
                }
            }
        }
        assert_eq!(seen.len(), count, "two of these streams share a number");
    }

    #[test]
    fn uniform_and_below_fill_their_range_evenly() {
        let stream = Stream::new(1, Purpose::Test);
        let mut counts = [0_u32; 10];
        for index in 0..100_000 {
            let uniform = stream.uniform(index);
            assert!((0.0..1.0).contains(&uniform));
            let tenth = stream.below(index, 10);
            assert_eq!(tenth, (uniform * 10.0) as u64, "both are the top of the same bits");
            counts[tenth as usize] += 1;
        }
        // Standard deviation of a count: sqrt(100 000 x 0.1 x 0.9) = 95.
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 500), "{counts:?}");
        assert!((0..1000).all(|index| stream.below(index, 1) == 0));
    }

    #[test]
    fn normal_quantiles_are_the_tables() {
        // Both sides of the boundaries at 0.425 and 0.5 - exp(-25), that is at 0.5 - 2^-36.07.
        for (centred, expected) in [
            (0.0625, 0.157_310_684_610_171),
            (0.425, 1.439_531_470_938_456),
            (0.4375, 1.534_120_544_352_546),
            (0.475, 1.959_963_984_540_054),
            (0.499, 3.090_232_306_167_813),
            (0.4999999, 5.199_337_582_084_284),
            (0.5 - 2.0_f64.powi(-35), 6.548_269_367_831_73),
            (0.5 - 2.0_f64.powi(-37), 6.752_300_431_407_015),
            (0.5 - 2.0_f64.powi(-52), 8.125_890_664_701_906),
        ] {
            let found = normal_quantile(centred);
            assert!((found / expected - 1.0).abs() < 3e-7, "{centred}: {found} {expected}");
            assert_eq!(normal_quantile(-centred), -found);
        }
        assert_eq!(normal_quantile(0.0), 0.0);
    }

    #[test]
    fn normals_have_the_moments_of_a_standard_normal() {
        let stream = Stream::new(5, Purpose::Test);
        let values: Vec<f64> = (0..200_000).map(|index| stream.normal(index)).collect();
        let moment = |power| values.iter().map(|v| v.powi(power)).sum::<f64>() / 200_000.0;
        // Five standard errors: sqrt of (1, 2, 15, 96) / 200 000.
        for (power, expected, room) in
            [(1, 0.0, 0.0112), (2, 1.0, 0.0158), (3, 0.0, 0.0433), (4, 3.0, 0.1096)]
        {
            let found = moment(power);
            assert!((found - expected).abs() < room, "moment {power}: {found}");
        }
        assert!(values.iter().all(|value| value.is_finite()));
    }
}
