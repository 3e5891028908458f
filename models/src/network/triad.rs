//! STREAM's triad, for measuring the rate at which the host reads and writes its memory.

use rayon::prelude::*;

/// Elements per task of a thread.
const CHUNK_ELEMENTS: usize = 1 << 16;

/// Arrays of the triad a = b + 3 c.
#[derive(Debug)]
pub struct Triad {
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
}

impl Triad {
    /// Fills three arrays with so many elements each.
    pub fn new(elements: usize) -> Self {
        let [a, b, c] = [0.0, 1.0, 2.0].map(|value| vec![value; elements]);
        Self { a, b, c }
    }

    /// Bytes that a pass reads and writes.
    pub fn bytes(&self) -> usize {
        3 * self.a.len() * size_of::<f32>()
    }

    /// Computes a from b and c on all threads.
    pub fn pass(&mut self) {
        let Self { a, b, c } = self;
        let operands = b.par_chunks(CHUNK_ELEMENTS).zip(c.par_chunks(CHUNK_ELEMENTS));
        a.par_chunks_mut(CHUNK_ELEMENTS).zip(operands).for_each(|(a, (b, c))| {
            for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
                *a = b + 3.0 * c;
            }
        });
        std::hint::black_box(a);
    }
}

#[test]
fn a_pass_adds_three_times_c() {
    let mut triad = Triad::new(CHUNK_ELEMENTS + 3);
    triad.pass();
    assert_eq!(triad.bytes(), 12 * (CHUNK_ELEMENTS + 3));
    assert!(triad.a.iter().all(|a| *a == 7.0));
}
