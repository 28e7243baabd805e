//! velo_build of velo.h.
const std = @import("std");
const base = @import("base");
const index = @import("index");
const common = @import("common.zig");
const gpu_file = @import("gpu.zig");
const fail = common.fail;
const ok = common.ok;

pub const BuildOptions = extern struct {
    struct_size: u32,
    dim: u32,
    row_count: u64,
    metric: i32,
    dtype: i32,
    memory_bits: u32,
    record_bits: u32,
    degree: u32,
    build_list_size: u32,
    alpha: f32,
    links_kept: u32,
    threads: u32,
    seed: u64,
    memory_bytes: u64,
    store_vectors: i32,
    overwrite: i32,
    affinity_percent: u32,
    restart: i32,
    checkpoint_ms: u32,
    no_page_links: i32,
    transient: i32,
    gives_way: i32,
    page_codes: i32,
    gpu: i32,
    places_once: i32,
    record_code_bytes: u32,
};

pub const BuildProgress = extern struct { struct_size: u32, stage: i32, done: u64, total: u64, resumed_stage: i32, resumed_done: u64 };

const Build = struct {
    builder: *index.Builder,
    process: i32,
    gpu: gpu_file.Linking,
};

export fn velo_build_open(path: ?[*:0]const u8, options: ?*const BuildOptions, build_out: ?*?*Build) i32 {
    const folder = path orelse return common.null_argument("path");
    const given = options orelse return common.null_argument("options");
    const out = build_out orelse return common.null_argument("build_out");
    const o = common.versioned(BuildOptions, given) orelse return common.size_error("options", given.struct_size);
    const metric = std.enums.fromInt(index.Metric, o.metric) orelse
        return fail(.invalid_argument, .{ .argument = "metric" }, "metric {d} is unknown", .{o.metric});
    const dtype = std.enums.fromInt(index.Dtype, o.dtype) orelse
        return fail(.invalid_argument, .{ .argument = "dtype" }, "dtype {d} is unknown", .{o.dtype});
    var own_options: index.builder.Options = .{
        .dim = o.dim,
        .n = o.row_count,
        .metric = metric,
        .dtype = dtype,
        .memory_bits = if (o.memory_bits == 0) 4 else o.memory_bits,
        .record_bits = o.record_bits,
        .degree = if (o.degree == 0) 48 else o.degree,
        .build_list_size = if (o.build_list_size == 0) 100 else o.build_list_size,
        .alpha = if (o.alpha == 0) 1.2 else o.alpha,
        .links_kept = if (o.links_kept == std.math.maxInt(u32)) null else o.links_kept,
        .page_links = o.no_page_links == 0,
        .page_codes = o.page_codes != 0,
        .record_code_bytes = o.record_code_bytes,
        .threads = common.thread_count(o.threads),
        .seed = o.seed,
        .memory_bytes = o.memory_bytes,
        .store_vectors = o.store_vectors != 0,
        .vectors_last = o.store_vectors == 2 and o.transient != 0,
        .overwrite = o.overwrite != 0,
        .affinity_percent = if (o.affinity_percent == 0) 5 else o.affinity_percent,
        .restart = o.restart != 0,
        .checkpoint_ms = if (o.checkpoint_ms == 0) 30_000 else o.checkpoint_ms,
        .transient = o.transient != 0,
        .gives_way = o.gives_way != 0,
        .places_once = o.places_once != 0,
    };
    var diagnostic: index.Diagnostic = .{};
    const build = common.allocator.create(Build) catch return common.out_of_memory();
    build.* = .{ .builder = undefined, .process = common.process(), .gpu = .{} };
    if (o.gpu != 0) {
        const status = common.status_of_call(link_on_gpu(build, o.gpu, &own_options));
        if (status != ok) {
            common.allocator.destroy(build);
            return status;
        }
    }
    build.builder = index.Builder.open(common.allocator, std.mem.span(folder), own_options, &diagnostic) catch |err| {
        build.gpu.close();
        common.allocator.destroy(build);
        return common.fail_index(err, &diagnostic);
    };
    out.* = build;
    return ok;
}

/// Before a folder is touched.
fn link_on_gpu(build: *Build, asked: i32, options: *index.builder.Options) common.Failure!void {
    var diagnostic: index.Diagnostic = .{};
    const vertices = index.Builder.largest_graph(options.*, &diagnostic) catch |err| {
        _ = common.fail_index(err, &diagnostic);
        return error.Reported;
    };
    try build.gpu.open(asked, options, vertices);
    options.walker = build.gpu.walker();
}

export fn velo_build_gpu_get(build: ?*const Build, info_out: ?*gpu_file.Info) i32 {
    const own = build orelse return common.null_argument("build");
    const out = info_out orelse return common.null_argument("info_out");
    const info = own.gpu.info();
    common.write_versioned(gpu_file.Info, out, &info);
    return ok;
}

export fn velo_build_warm_start(build: ?*Build, path: ?[*:0]const u8, rows: ?[*]const u32, vertex_count: u64) i32 {
    const own = build orelse return common.null_argument("build");
    if (own.process != common.process()) return common.forked();
    const folder = path orelse return common.null_argument("path");
    const given = rows orelse return common.null_argument("rows");
    var diagnostic: index.Diagnostic = .{};
    own.builder.go_on_from(std.mem.span(folder), given[0..@intCast(vertex_count)], &diagnostic) catch |err| return common.fail_index(err, &diagnostic);
    return ok;
}

const Pass = enum { scan, add, vectors };

fn pass(build: ?*Build, rows: ?*const anyopaque, row_count: u64, row_stride: u64, which: Pass) i32 {
    const own = build orelse return common.null_argument("build");
    if (own.process != common.process()) return common.forked();
    if (row_count == 0) return ok;
    const bytes: [*]const u8 = @ptrCast(rows orelse return common.null_argument("rows"));
    var diagnostic: index.Diagnostic = .{};
    const result = switch (which) {
        .scan => own.builder.scan(bytes, row_count, row_stride, &diagnostic),
        .add => own.builder.add(bytes, row_count, row_stride, &diagnostic),
        .vectors => own.builder.add_vectors(bytes, row_count, row_stride, &diagnostic),
    };
    result catch |err| return common.fail_index(err, &diagnostic);
    return ok;
}

export fn velo_build_scan(build: ?*Build, rows: ?*const anyopaque, row_count: u64, row_stride: u64) i32 {
    return pass(build, rows, row_count, row_stride, .scan);
}

export fn velo_build_add(build: ?*Build, rows: ?*const anyopaque, row_count: u64, row_stride: u64) i32 {
    return pass(build, rows, row_count, row_stride, .add);
}

export fn velo_build_vectors(build: ?*Build, rows: ?*const anyopaque, row_count: u64, row_stride: u64) i32 {
    return pass(build, rows, row_count, row_stride, .vectors);
}

export fn velo_build_run(build: ?*Build) i32 {
    const own = build orelse return common.null_argument("build");
    if (own.process != common.process()) return common.forked();
    var diagnostic: index.Diagnostic = .{};
    own.builder.run(&diagnostic) catch |err| return common.fail_index(err, &diagnostic);
    return ok;
}

export fn velo_build_progress_get(build: ?*Build, progress_out: ?*BuildProgress) i32 {
    const own = build orelse return common.null_argument("build");
    const out = progress_out orelse return common.null_argument("progress_out");
    const control = &own.builder.control;
    const progress: BuildProgress = .{
        .struct_size = out.struct_size,
        .stage = control.stage.load(.acquire),
        .done = control.done.load(.monotonic),
        .total = control.total.load(.monotonic),
        .resumed_stage = control.resumed.load(.acquire),
        .resumed_done = control.resumed_done.load(.monotonic),
    };
    common.write_versioned(BuildProgress, out, &progress);
    return ok;
}

export fn velo_build_cancel(build: ?*Build) i32 {
    const own = build orelse return common.null_argument("build");
    own.builder.control.canceled.store(true, .release);
    return ok;
}

export fn velo_build_keep(build: ?*Build) i32 {
    const own = build orelse return common.null_argument("build");
    if (own.process != common.process()) return common.forked();
    var diagnostic: index.Diagnostic = .{};
    own.builder.keep(&diagnostic) catch |err| return common.fail_index(err, &diagnostic);
    return ok;
}

export fn velo_build_order(build: ?*Build, rows_out: ?[*]u32) i32 {
    const own = build orelse return common.null_argument("build");
    const out = rows_out orelse return common.null_argument("rows_out");
    const order = own.builder.order orelse return fail(.invalid_argument, .{ .argument = "build" }, "the order is known between velo_build_run and velo_build_commit", .{});
    @memcpy(out[0..order.len], order);
    return ok;
}

export fn velo_build_commit(build: ?*Build, extra_files: ?[*]const ?[*:0]const u8, extra_count: u32, extra_json: ?[*:0]const u8) i32 {
    const own = build orelse return common.null_argument("build");
    if (own.process != common.process()) return common.forked();
    const names = common.allocator.alloc([]const u8, extra_count) catch return common.out_of_memory();
    defer common.allocator.free(names);
    for (names, 0..) |*name, i| name.* = std.mem.span((extra_files orelse return common.null_argument("extra_files"))[i] orelse return common.null_argument("extra_files"));
    var diagnostic: index.Diagnostic = .{};
    own.builder.commit(names, if (extra_json) |text| std.mem.span(text) else null, &diagnostic) catch |err| return common.fail_index(err, &diagnostic);
    return ok;
}

export fn velo_build_close(place: ?*?*Build) i32 {
    const own = common.take(Build, place) orelse return ok;
    // A child of a fork must not remove its parent's work.
    if (own.process != common.process()) return common.forked();
    own.builder.close();
    own.gpu.close();
    common.allocator.destroy(own);
    base.give_back();
    return ok;
}
