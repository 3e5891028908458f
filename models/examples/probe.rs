#![allow(missing_docs)]
use half::bf16;
use std::time::Instant;
use yardstick_models::ops::matmul::{self, *};
fn main() {
    let a: Vec<usize> = std::env::args().skip(2).map(|x| x.parse().unwrap()).collect();
    let what = std::env::args().nth(1).unwrap();
    let (rows, inputs, outputs, threads) = (a[0], a[1], a[2], a[3]);
    let num = |n: usize| -> Vec<bf16> {
        (0..n).map(|i| bf16::from_f32((i * 7919 % 1009) as f32 * 4e-4 - 0.2)).collect()
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| {
        let shape = Shape { rows, inputs, outputs };
        let (x, dy, w) = (num(rows * inputs), num(rows * outputs), num(inputs * outputs));
        let (mut y, mut dx) = (dy.clone(), x.clone());
        let mut dw = vec![0f32; inputs * outputs];
        let mut packed = PackedWeight::new(outputs, inputs);
        let mut ws = Workspace::new(threads);
        let f = (2 * rows * inputs * outputs) as f64 / 1e9;
        for what in what.split(',') {
            let mut t = vec![];
            let t0 = Instant::now();
            while t0.elapsed().as_secs_f64() < 1.5 {
                let s = Instant::now();
                match what {
                    "y" => matmul::forward(
                        &mut y,
                        &x,
                        Weight { rows: &w, packed: Some(&mut packed) },
                        (None, Epilogue::Store),
                        shape,
                        &mut ws,
                    ),
                    "dx" => matmul::backward_input(
                        &mut dx,
                        &dy,
                        Weight { rows: &w, packed: Some(&mut packed) },
                        None,
                        shape,
                        &mut ws,
                    ),
                    "dw" => matmul::backward_weight(&mut dw, &dy, &x, Sums::Write, shape, &mut ws),
                    _ => {
                        packed.expire();
                        matmul::forward(
                            &mut y[..outputs],
                            &x[..inputs],
                            Weight { rows: &w, packed: Some(&mut packed) },
                            (None, Epilogue::Store),
                            Shape { rows: 1, ..shape },
                            &mut ws,
                        )
                    }
                }
                t.push(s.elapsed().as_secs_f64());
            }
            t.sort_by(|a, b| a.total_cmp(b));
            print!(
                "{what}: best {:.0} p10 {:.0} median {:.0} | ",
                f / t[0],
                f / t[t.len() / 10],
                f / t[t.len() / 2]
            );
        }
        println!("{a:?}");
    });
}
