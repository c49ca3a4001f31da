//! The report: four plots over the size of bodies, as SVG.

use std::collections::BTreeMap;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use underdeck_lab::LabError;

use crate::figure::Figure;
use crate::result::{Case, Document, write};
use crate::scenario::Backend;
use crate::size::show;

const WIDTH: u32 = 1600;
const HEIGHT: u32 = 1280;
/// Colours that differ for colour-blind readers too (Okabe and Ito).
const COLORS: [RGBColor; 5] =
    [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167), RGBColor(86, 80, 66)];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Failed = Box<dyn std::error::Error>;

/// A line of a plot.
struct Series {
    proxy: usize,
    mode: String,
    /// The backend sends files: dashed, with hollow circles.
    of_files: bool,
    /// In the legend. None: it stands beside a line of the same proxy and mode with the other backend.
    name: Option<String>,
    points: Vec<(u64, Figure)>,
}

struct Plot {
    title: &'static str,
    unit: &'static str,
    figure: fn(&Case) -> Option<Figure>,
    /// Powers of ten on the vertical axis: what spans decades would otherwise be a line at the bottom.
    decades: bool,
    modes: &'static [&'static str],
}

const PLOTS: [Plot; 4] = [
    Plot {
        title: "Payload per second of proxy CPU",
        unit: "GB",
        figure: |case| case.gb_per_cpu_s,
        decades: false,
        modes: &["plain", "underdeck", "splice", "relay"],
    },
    Plot {
        title: "p99 at saturation, closed loop",
        unit: "ms",
        figure: |case| case.closed_p99_ms,
        decades: true,
        modes: &["plain", "underdeck", "splice"],
    },
    Plot {
        title: "Proxy CPU per request",
        unit: "us",
        figure: |case| case.cpu_us_per_request,
        decades: true,
        modes: &["plain", "underdeck", "splice"],
    },
    Plot {
        title: "Payload copied to the proxy, per request",
        unit: "KiB",
        figure: |case| {
            let kib = |bytes: f64| bytes / 1024.0;
            case.bytes_copied_per_request.map(|it| Figure {
                median: kib(it.median),
                min: kib(it.min),
                max: kib(it.max),
            })
        },
        decades: true,
        modes: &["plain", "underdeck"],
    },
];

/// Responses of a known length, 64 connections, loopback: what the plots show.
fn shown(case: &&Case) -> bool {
    let (network, _, _, direction, framing, connections, _) = case.point();
    (network, direction, framing, connections) == ("loopback", "response", "length", 64)
}

fn series(document: &Document, plot: &Plot) -> Vec<Series> {
    let mut proxies: Vec<&str> = Vec::new();
    let mut all: BTreeMap<(usize, usize, bool), Series> = BTreeMap::new();
    for case in document.cases.iter().filter(shown) {
        let proxy = proxies.iter().position(|name| *name == case.proxy).unwrap_or_else(|| {
            proxies.push(&case.proxy);
            proxies.len() - 1
        });
        let Some(mode) = plot.modes.iter().position(|mode| *mode == case.mode) else { continue };
        let Some(figure) = (plot.figure)(case) else { continue };
        // The relay is the same whatever proxy it stands beside: once is enough.
        if case.mode == "relay" && proxy > 0 {
            continue;
        }
        let name =
            if case.mode == "relay" { "splice relay".to_owned() } else { format!("{} {}", case.proxy, case.mode) };
        let of_files = case.backend == Backend::Sendfile.name();
        let new = || Series { proxy, mode: case.mode.clone(), of_files, name: Some(name), points: Vec::new() };
        all.entry((proxy, mode, of_files)).or_insert_with(new).points.push((case.body_bytes, figure));
    }
    let named: Vec<(usize, usize)> = all.keys().filter(|it| !it.2).map(|it| (it.0, it.1)).collect();
    for (_, it) in all.iter_mut().filter(|(key, _)| key.2 && named.contains(&(key.0, key.1))) {
        it.name = None;
    }
    all.into_values().collect()
}

/// Writes the report.
pub fn save(document: &Document, path: &Path) -> Result<(), LabError> {
    write(path, draw(document).map_err(|error| std::io::Error::other(error.to_string())))
}

fn draw(document: &Document) -> Result<String, Failed> {
    let mut text = String::new();
    {
        let root = SVGBackend::with_string(&mut text, (WIDTH, HEIGHT)).into_drawing_area();
        root.fill(&WHITE)?;
        let machine = &document.machine;
        let title = ("sans-serif", 30).into_font().style(FontStyle::Bold).color(&BLACK);
        root.draw(&Text::new("Underdeck anchor: plain and under Underdeck, side by side", (30, 18), title))?;
        let line = format!(
            "{}, {} CPUs, {}; loopback, 64 connections, keep-alive; medians of {} interleaved runs, bars: least and most; \
             full: the backend writes, dashed and hollow: it sends files",
            machine.cpu,
            machine.cpus,
            machine.kernel.split_whitespace().take(2).collect::<Vec<_>>().join(" "),
            document.pairs
        );
        root.draw(&Text::new(line, (30, 56), ("sans-serif", 17).into_font().color(&BLACK)))?;
        let (_, plots) = root.split_vertically(86);
        for (area, plot) in plots.split_evenly((2, 2)).iter().zip(&PLOTS) {
            panel(area, plot, &series(document, plot))?;
        }
        root.present()?;
    }
    Ok(text)
}

fn panel(area: &Area<'_>, plot: &Plot, series: &[Series]) -> Result<(), Failed> {
    let values = || series.iter().flat_map(|it| &it.points);
    let bodies = values().map(|(body, _)| *body);
    let (Some(first), Some(last)) = (bodies.clone().min(), bodies.max()) else {
        let style = ("sans-serif", 18).into_font().color(&BLACK);
        return Ok(area.draw(&Text::new(format!("{}: not measured", plot.title), (30, 30), style))?);
    };
    // Medians say how high the plot is: one run that was disturbed must not press all others to the ground.
    let medians = || values().map(|(_, figure)| figure.median).filter(|median| *median > 0.0);
    let highest = medians().fold(f64::MIN_POSITIVE, f64::max);
    let lowest = medians().fold(highest, f64::min);
    let (bottom, top) = match plot.decades {
        true => (lowest.log10().floor(), highest.log10() + 0.3),
        false => (0.0, highest * 1.25),
    };
    let decades = plot.decades;
    let height = move |value: f64| if decades { value.max(1e-9).log10() } else { value }.clamp(bottom, top);
    let power = |body: u64| (body as f64).log2();
    let mut chart = ChartBuilder::on(area)
        .margin(16)
        .caption(format!("{} ({})", plot.title, plot.unit), ("sans-serif", 22))
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(power(first) - 0.4..power(last) + 0.4, bottom..top)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .x_labels((power(last) - power(first)) as usize + 2)
        .x_label_formatter(&|power| if power.fract() == 0.0 { show(1 << *power as u64) } else { String::new() })
        .y_labels(if decades { (top - bottom) as usize + 2 } else { 8 })
        .y_label_formatter(&|at| match decades {
            true if at.fract() == 0.0 => format!("{}", 10f64.powf(*at)),
            true => String::new(),
            false => format!("{at:.1}"),
        })
        .label_style(("sans-serif", 15))
        .draw()?;
    for it in series {
        line(&mut chart, it, &power, &height)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .label_font(("sans-serif", 14))
        .draw()?;
    Ok(())
}

type Chart<'a, 'b> = ChartContext<
    'a,
    SVGBackend<'b>,
    Cartesian2d<plotters::coord::types::RangedCoordf64, plotters::coord::types::RangedCoordf64>,
>;

/// Underdeck is a thick line, plain a thin one, what else there is a pale one; a bar is the spread.
fn line(
    chart: &mut Chart<'_, '_>,
    series: &Series,
    power: &dyn Fn(u64) -> f64,
    height: &dyn Fn(f64) -> f64,
) -> Result<(), Failed> {
    let color = if series.mode == "relay" { BLACK } else { COLORS[series.proxy % COLORS.len()] };
    let (width, strength) = match series.mode.as_str() {
        "underdeck" => (4, 1.0),
        "plain" => (2, 0.55),
        "relay" => (2, 0.9),
        _ => (2, 0.3),
    };
    let style = color.mix(strength).stroke_width(width);
    let medians = series.points.iter().map(|(body, figure)| (power(*body), height(figure.median)));
    let drawn = match series.of_files {
        true => chart.draw_series(DashedLineSeries::new(medians.clone(), 8, 6, style))?,
        false => chart.draw_series(LineSeries::new(medians.clone(), style))?,
    };
    if let Some(name) = &series.name {
        drawn.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 22, y)], style));
    }
    let circle = if series.of_files { color.mix(strength).stroke_width(2) } else { style.filled() };
    chart.draw_series(medians.map(|at| Circle::new(at, width + 1, circle)))?;
    let bars = series.points.iter().map(|(body, figure)| {
        PathElement::new(
            [(power(*body), height(figure.min)), (power(*body), height(figure.max))],
            color.mix(strength * 0.6).stroke_width(1),
        )
    });
    chart.draw_series(bars)?;
    Ok(())
}
