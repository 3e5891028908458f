//! Element-wise sums.

use rayon::prelude::*;

use crate::ops::{ELEMENT_CHUNK, Element, simd};

/// y = a + b, element-wise.
///
/// # Panics
/// When the lengths differ.
pub fn forward<E: Element>(y: &mut [E], a: &[E], b: &[E]) {
    assert!(y.len() == a.len() && y.len() == b.len(), "y, a and b of one length");
    let operands = a.par_chunks(ELEMENT_CHUNK).zip(b.par_chunks(ELEMENT_CHUNK));
    y.par_chunks_mut(ELEMENT_CHUNK).zip(operands).for_each(|(y, (a, b))| {
        simd::vectorize(
            #[inline(always)]
            || {
                for (y, (&a, &b)) in y.iter_mut().zip(a.iter().zip(b)) {
                    *y = E::narrow(a.widen() + b.widen());
                }
            },
        );
    });
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::uniform;

    #[test]
    fn sums_over_several_chunks() {
        let (a, b): (Vec<f32>, Vec<f32>) = (uniform(40_001, 1), uniform(40_001, 2));
        let mut y = vec![0.0; a.len()];
        super::forward(&mut y, &a, &b);
        assert!(y.iter().zip(a.iter().zip(&b)).all(|(y, (a, b))| *y == a + b));
    }
}
