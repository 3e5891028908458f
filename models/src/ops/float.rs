//! The element types of the ops: f32 and bf16 train, f64 checks gradients by finite differences.

use std::ops::{Add, AddAssign, Div, Mul, MulAssign, Neg, Sub, SubAssign};

use half::bf16;

/// Storage type of weights and activations; every sum is accumulated in [`Element::Wide`].
///
/// f32 and f64 are their own wide type, so an op over elements is the same code in all formats.
pub trait Element: device::Element {
    /// Type of the computation: f32 for bf16 and f32, f64 for f64.
    type Wide: Float;
    /// 0.
    const ZERO: Self;

    /// The value, exactly.
    fn widen(self) -> Self::Wide;
    /// The nearest element, ties to even.
    fn narrow(value: Self::Wide) -> Self;
    /// Two elements in one wide element, the first in the lower half: the operand of instructions
    /// for dot products of pairs.
    ///
    /// # Panics
    /// For an element that is its own wide type.
    fn pair(first: Self, second: Self) -> Self::Wide;
}

/// An element that is its own wide type.
macro_rules! own_wide {
    ($float:ident) => {
        impl Element for $float {
            type Wide = Self;
            const ZERO: Self = 0.0;

            #[inline(always)]
            fn widen(self) -> Self {
                self
            }

            #[inline(always)]
            fn narrow(value: Self) -> Self {
                value
            }

            fn pair(_first: Self, _second: Self) -> Self {
                unreachable!("no kernel takes pairs of {}", stringify!($float))
            }
        }
    };
}

own_wide!(f32);
own_wide!(f64);

impl Element for bf16 {
    type Wide = f32;
    const ZERO: Self = Self::ZERO;

    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    /// Without a branch, so that it vectorises; a NaN stays a quiet NaN.
    #[inline(always)]
    fn narrow(value: f32) -> Self {
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        let quiet = bits >> 16 | 0x40;
        Self::from_bits(if value.is_nan() { quiet } else { rounded } as u16)
    }

    #[inline(always)]
    fn pair(first: Self, second: Self) -> f32 {
        f32::from_bits(u32::from(second.to_bits()) << 16 | u32::from(first.to_bits()))
    }
}

/// A floating-point element: f32 or f64.
///
/// Outside of the matmul kernels sums and products are contracted into fused multiply-adds only by
/// explicit calls: element-wise ops give the same bits at every vector width.
pub trait Float:
    Element<Wide = Self>
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
{
    /// 1.
    const ONE: Self;
    /// Minus infinity.
    const LOWEST: Self;

    /// The nearest value to an f64.
    fn from_f64(value: f64) -> Self;
    /// The value as an f64, exactly.
    fn to_f64(self) -> f64;
    /// Square root, correctly rounded.
    fn sqrt(self) -> Self;
    /// This times `factor` plus `addend`, rounded once.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// e to the power of this, without branches so that it vectorises; NaN stays NaN, minus
    /// infinity gives 0.
    ///
    /// In f32 the relative error is below 3e-7 from -87 to 88; results that would be subnormal are
    /// 0 and arguments above 88 are taken as 88.
    fn exp(self) -> Self;

    /// The larger of both; `other` when this is NaN.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if self > other { self } else { other }
    }
}

impl Float for f32 {
    const ONE: Self = 1.0;
    const LOWEST: Self = Self::NEG_INFINITY;

    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value as Self
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        self.sqrt()
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        self.mul_add(factor, addend)
    }

    /// x = n ln 2 + r with |r| <= ln 2 / 2; for e^r the polynomial 1 + r + ... + c r^5 with the
    /// least relative error, at most 1.1e-7; and 2^n through the bits of the exponent.
    #[inline(always)]
    fn exp(self) -> Self {
        const LOWER: f32 = -87.0;
        const UPPER: f32 = 88.0;
        const ROUND: f32 = 12_582_912.0; // 1.5 x 2^23: adding it leaves an integer in the low bits
        const LN_2_HIGH: f32 = 0.693_359_4; // 355 / 512: n times it is exact
        const LN_2_LOW: f32 = -2.121_944_4e-4;
        const COEFFICIENTS: [f32; 5] = [0.041_890_33, 0.166_671_15, 0.499_992_3, 1.0, 1.0];
        let x = if self > UPPER { UPPER } else { self };
        let x = if x < LOWER { LOWER } else { x };
        let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
        let n = shifted - ROUND;
        let r = n.mul_add(-LN_2_LOW, n.mul_add(-LN_2_HIGH, x));
        let mut series = 0.008_312_502;
        for coefficient in COEFFICIENTS {
            series = r.mul_add(series, coefficient);
        }
        let power = Self::from_bits((shifted.to_bits() << 23).wrapping_add(0x3F80_0000));
        if self < LOWER { 0.0 } else { series * power }
    }
}

impl Float for f64 {
    const ONE: Self = 1.0;
    const LOWEST: Self = Self::NEG_INFINITY;

    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        self.sqrt()
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        self.mul_add(factor, addend)
    }

    #[inline(always)]
    fn exp(self) -> Self {
        self.exp()
    }
}

#[cfg(test)]
mod tests {
    use super::{Element, Float, bf16};

    #[test]
    fn bf16_rounds_to_nearest_even_like_the_library() {
        for high in (0..=u16::MAX).step_by(7) {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(u32::from(high) << 16 | low);
                let found = bf16::narrow(value);
                let exact = bf16::from_f32(value);
                assert_eq!(found.to_bits(), exact.to_bits(), "{value:e}");
                assert_eq!(found.widen().to_bits(), exact.to_f32().to_bits());
            }
        }
    }

    #[test]
    fn exp_keeps_its_stated_error() {
        let mut worst = 0.0_f64;
        for step in -870_000..880_000 {
            let x = step as f32 * 1e-4;
            let exact = f64::from(x).exp();
            worst = worst.max((Float::exp(x).to_f64() - exact).abs() / exact);
        }
        assert!(worst < 3e-7, "relative error {worst:e}");
    }

    #[test]
    fn exp_at_the_edges() {
        assert_eq!(Float::exp(0.0_f32), 1.0);
        assert_eq!(Float::exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(Float::exp(-88.0_f32), 0.0);
        assert!(Float::exp(f32::NAN).is_nan());
        assert!(Float::exp(f32::INFINITY) > 1e38);
    }
}
