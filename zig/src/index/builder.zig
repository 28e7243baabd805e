//! A build from its first row to its manifest. Rows stream through twice (scan: check, mean, norms; add: rotate and
//! encode); the graph is built over 8-bit codes in memory; codes as they will be stored wait in a work file in row
//! order until placement has given every row its vertex.
//!
//! A folder under construction holds `marker_name` and no manifest. Whatever ends a build early leaves at most such a
//! folder, which does not open and which the next build of the same path takes over.
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const quant = @import("quant");
const graph = @import("graph");
const diagnostics = @import("diagnostic.zig");
const files = @import("files.zig");
const space = @import("space.zig");
const work = @import("work.zig");
const writer = @import("writer.zig");
const reader = @import("reader.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const Metric = reader.Metric;
const Dtype = reader.Dtype;

pub const marker_name = "building";

pub const Options = struct {
    dim: u32,
    n: u64,
    metric: Metric,
    dtype: Dtype,
    memory_bits: u32 = 4,
    record_bits: u32 = 4,
    degree: u32 = 48,
    build_list_size: u32 = 100,
    alpha: f32 = 1.2,
    links_kept: u32 = 32,
    threads: u32 = 1,
    seed: u64 = 0,
    memory_bytes: u64 = 0,
    store_vectors: bool = false,
    overwrite: bool = false,
    /// How near records of one color lie: a percentile of the distances to a cluster's centroid.
    affinity_percent: u32 = 5,
};

pub const Stage = enum(i32) { scan = 0, encode = 1, graph = 2, place = 3, write = 4, commit = 5, done = 6 };

/// What a build tells and is told while it runs; shared between threads.
pub const Control = struct {
    stage: std.atomic.Value(i32) = .init(0),
    done: std.atomic.Value(u64) = .init(0),
    total: std.atomic.Value(u64) = .init(0),
    canceled: std.atomic.Value(bool) = .init(false),

    pub fn enter(self: *Control, stage: Stage, total: u64) void {
        self.done.store(0, .monotonic);
        self.total.store(total, .monotonic);
        self.stage.store(@intFromEnum(stage), .release);
    }

    pub fn check(self: *const Control) error{Canceled}!void {
        if (self.canceled.load(.monotonic)) return error.Canceled;
    }
};

/// Rows are encoded in runs of this many, a run a thread at a time.
const run_rows = 1024;

pub const Builder = struct {
    allocator: std.mem.Allocator,
    path: []u8,
    dir: std.fs.Dir,
    made_folder: bool,
    /// Locked for as long as the build lives.
    marker: std.fs.File,
    options: Options,
    dim_work: u32,
    params: quant.CodeParams,
    control: Control = .{},
    uuid: [36]u8,
    salt: u32,

    scanned: u64 = 0,
    mean_sum: []f64,
    norm_max2: f64 = 0,
    norms: std.ArrayList(f32) = .empty, // a sample of squared norms, for the mean of the inner product's coordinate
    norm_max: f32 = 0,
    mean: []f32,
    rotation: quant.Rotation,

    added: u64 = 0,
    build_codes: ?quant.BuildCodes = null,
    work_codes: ?work.CodesFile = null,
    work_vectors: ?std.fs.File = null,
    encoders: []EncodeThread,
    order: ?[]u32 = null,
    written: ?writer.Written = null,
    committed: bool = false,

    const norms_sample_max = 1 << 16;

    pub fn open(allocator: std.mem.Allocator, path: []const u8, options: Options, diagnostic: *Diagnostic) Error!*Builder {
        try check_options(options, diagnostic);
        const dim_work = space.dim_work(options.metric, options.dim);
        const params: quant.CodeParams = .{
            .dim = quant.dim_code_of(dim_work),
            .memory_bits = @intCast(options.memory_bits),
            .record_bits = @intCast(options.record_bits),
        };
        if (options.memory_bytes > 0) {
            const needed = memory_needed(options, params.dim);
            if (needed > options.memory_bytes) {
                diagnostic.argument = "memory";
                diagnostic.needed_bytes = needed;
                diagnostic.say("building {d} vectors of {d} dimensions at degree {d} takes {d} bytes, but memory is {d}", .{
                    options.n, options.dim, options.degree, needed, options.memory_bytes,
                });
                return error.BudgetTooSmall;
            }
        }
        const folder = try claim_folder(path, options.overwrite, diagnostic);
        var dir = folder.dir;
        errdefer folder.marker.close();
        errdefer {
            dir.deleteFile(marker_name) catch {};
            dir.close();
            if (folder.made) std.fs.cwd().deleteDir(path) catch {};
        }
        const self = try allocator.create(Builder);
        errdefer allocator.destroy(self);
        const path_copy = try allocator.dupe(u8, path);
        errdefer allocator.free(path_copy);
        const mean_sum = try allocator.alloc(f64, dim_work);
        errdefer allocator.free(mean_sum);
        @memset(mean_sum, 0);
        const mean = try allocator.alloc(f32, dim_work);
        errdefer allocator.free(mean);
        var rotation = try quant.Rotation.init(allocator, dim_work, options.seed);
        errdefer rotation.deinit(allocator);
        const encoders = try allocator.alloc(EncodeThread, @max(1, options.threads));
        errdefer allocator.free(encoders);
        var made: usize = 0;
        errdefer for (encoders[0..made]) |*encoder| encoder.deinit(allocator);
        for (encoders) |*encoder| {
            encoder.* = try EncodeThread.init(allocator, dim_work, params);
            made += 1;
        }
        var random_bytes: [16]u8 = undefined;
        if (options.threads == 1) {
            // A build that promises the same bytes every time cannot draw its name from the system.
            var prng = base.Prng.init(options.seed ^ (options.n << 20) ^ options.dim);
            for (0..2) |i| std.mem.writeInt(u64, random_bytes[i * 8 ..][0..8], prng.next(), .little);
        } else std.crypto.random.bytes(&random_bytes);
        random_bytes[6] = (random_bytes[6] & 0x0f) | 0x40; // version 4
        random_bytes[8] = (random_bytes[8] & 0x3f) | 0x80;
        self.* = .{
            .allocator = allocator,
            .path = path_copy,
            .dir = dir,
            .made_folder = folder.made,
            .marker = folder.marker,
            .options = options,
            .dim_work = dim_work,
            .params = params,
            .uuid = uuid_text(&random_bytes),
            .salt = std.mem.readInt(u32, random_bytes[0..4], .little),
            .mean_sum = mean_sum,
            .mean = mean,
            .rotation = rotation,
            .encoders = encoders,
        };
        self.control.enter(.scan, options.n);
        return self;
    }

    pub fn close(self: *Builder) void {
        const allocator = self.allocator;
        self.drop_work();
        if (!self.committed) {
            for ([_][]const u8{ reader.file_codes, reader.file_links, reader.file_pages, reader.file_page_starts, reader.file_vectors }) |name|
                self.dir.deleteFile(name) catch {};
            self.dir.deleteFile(marker_name) catch {};
        }
        self.marker.close();
        self.dir.close();
        // Only when empty: files that somebody else put there are not ours to remove.
        if (!self.committed and self.made_folder) std.fs.cwd().deleteDir(self.path) catch {};
        for (self.encoders) |*encoder| encoder.deinit(allocator);
        allocator.free(self.encoders);
        if (self.order) |order| allocator.free(order);
        if (self.written) |*written| written.deinit(allocator);
        self.norms.deinit(allocator);
        self.rotation.deinit(allocator);
        allocator.free(self.mean);
        allocator.free(self.mean_sum);
        allocator.free(self.path);
        allocator.destroy(self);
    }

    fn drop_work(self: *Builder) void {
        if (self.build_codes) |*codes| codes.deinit();
        self.build_codes = null;
        if (self.work_codes) |*file| file.deinit(self.dir);
        self.work_codes = null;
        if (self.work_vectors) |file| {
            file.close();
            self.dir.deleteFile(work.vectors_name) catch {};
        }
        self.work_vectors = null;
    }

    // ---- first pass ----

    pub fn scan(self: *Builder, rows: [*]const u8, row_count: u64, row_stride: u64, diagnostic: *Diagnostic) Error!void {
        try self.control.check();
        try self.check_count(self.scanned, row_count, diagnostic);
        const row = self.encoders[0].row[0..self.options.dim];
        const row_bytes = self.options.dim * self.options.dtype.bytes();
        for (0..@intCast(row_count)) |i| {
            space.convert(self.options.dtype, rows[i * row_stride ..][0..row_bytes], row);
            if (!space.is_finite(row)) {
                diagnostic.argument = "vectors";
                diagnostic.row = @intCast(self.scanned + i);
                diagnostic.say("row {d} of vectors holds NaN, infinity or a magnitude above {d}", .{ self.scanned + i, space.magnitude_max });
                return error.NotFinite;
            }
            switch (self.options.metric) {
                .l2 => {},
                .cosine => space.normalise(row),
                .ip => {
                    const square = space.norm2(row);
                    self.norm_max2 = @max(self.norm_max2, square);
                    if (self.norms.items.len < norms_sample_max) try self.norms.append(self.allocator, square);
                },
            }
            for (row, self.mean_sum[0..row.len]) |value, *sum| sum.* += value;
            if (i % 4096 == 0) try self.control.check();
        }
        self.scanned += row_count;
        self.control.done.store(self.scanned, .monotonic);
        if (self.scanned == self.options.n) try self.finish_scan();
    }

    fn check_count(self: *const Builder, before: u64, row_count: u64, diagnostic: *Diagnostic) Error!void {
        if (row_count <= self.options.n - before) return;
        diagnostic.argument = "vectors";
        diagnostic.say("{d} rows were announced, but {d} came", .{ self.options.n, before + row_count });
        return error.InvalidArgument;
    }

    fn finish_scan(self: *Builder) Error!void {
        const n: f64 = @floatFromInt(self.options.n);
        for (self.mean, self.mean_sum) |*mean, sum| mean.* = @floatCast(sum / n);
        // The square root of a rounded maximum must not fall below any norm.
        self.norm_max = @floatCast(@sqrt(self.norm_max2) * (1 + 1e-6));
        if (self.options.metric == .ip) {
            var sum: f64 = 0;
            for (self.norms.items) |square| sum += @sqrt(@max(0, self.norm_max * self.norm_max - square));
            self.mean[self.dim_work - 1] = @floatCast(sum / @as(f64, @floatFromInt(@max(1, self.norms.items.len))));
        }
        self.norms.clearAndFree(self.allocator);
        self.build_codes = try quant.BuildCodes.init(@intCast(self.options.n), self.params.dim);
        self.control.enter(.encode, self.options.n);
    }

    // ---- second pass ----

    pub fn add(self: *Builder, rows: [*]const u8, row_count: u64, row_stride: u64, diagnostic: *Diagnostic) Error!void {
        try self.control.check();
        if (self.scanned != self.options.n) {
            diagnostic.argument = "vectors";
            diagnostic.say("{d} rows were announced, but only {d} came", .{ self.options.n, self.scanned });
            return error.InvalidArgument;
        }
        try self.check_count(self.added, row_count, diagnostic);
        if (self.work_codes == null) {
            self.work_codes = try work.CodesFile.create(self.allocator, self.dir, self.params, diagnostic);
            if (self.options.store_vectors) self.work_vectors = try work.create_file(self.dir, work.vectors_name, diagnostic);
        }
        const row_bytes = self.options.dim * self.options.dtype.bytes();
        var at: u64 = 0;
        while (at < row_count) {
            try self.control.check();
            // One run a thread, then the runs are written in order: the file does not depend on the threads.
            var used: usize = 0;
            for (self.encoders) |*encoder| {
                const count = @min(run_rows, row_count - at);
                if (count == 0) break;
                encoder.start(self, rows + at * row_stride, row_stride, self.added + at, @intCast(count));
                used += 1;
                at += count;
            }
            for (self.encoders[1..used]) |*encoder| encoder.thread = std.Thread.spawn(.{}, EncodeThread.run, .{encoder}) catch null;
            self.encoders[0].run();
            for (self.encoders[1..used]) |*encoder| if (encoder.thread) |thread| thread.join() else encoder.run();
            for (self.encoders[0..used]) |*encoder| {
                if (encoder.changed_row) |changed| {
                    diagnostic.argument = "vectors";
                    diagnostic.row = @intCast(changed);
                    diagnostic.say("row {d} of vectors changed between the two passes", .{changed});
                    return error.NotFinite;
                }
                try self.work_codes.?.append(encoder.stored[0 .. encoder.count * self.work_codes.?.row_bytes], &encoder.ranges, diagnostic);
                encoder.ranges = .{};
            }
            self.control.done.store(self.added + at, .monotonic);
        }
        if (self.work_vectors) |file| {
            for (0..@intCast(row_count)) |i|
                file.writeAll(rows[i * row_stride ..][0..row_bytes]) catch |err| return diagnostics.file_error(diagnostic, work.vectors_name, "write", err);
        }
        self.added += row_count;
        if (self.added == self.options.n) try self.work_codes.?.finish(diagnostic);
    }

    // ---- graph, placement, pages ----

    pub fn run(self: *Builder, diagnostic: *Diagnostic) Error!void {
        if (self.added != self.options.n or self.work_codes == null) {
            diagnostic.argument = "vectors";
            diagnostic.say("{d} rows were announced, but only {d} came", .{ self.options.n, self.added });
            return error.InvalidArgument;
        }
        const n: u32 = @intCast(self.options.n);
        const allocator = self.allocator;
        const codes = &self.build_codes.?;
        self.control.enter(.graph, n);
        var built = graph.build(quant.BuildCodes, allocator, codes, .{
            .degree = self.options.degree,
            .list_size = self.options.build_list_size,
            .alpha = self.options.alpha,
            .threads = self.options.threads,
            .seed = self.options.seed,
            .progress = &self.control.done,
            .cancel = &self.control.canceled,
        }) catch |err| return graph_error(diagnostic, err);
        defer built.deinit(allocator);
        try self.control.check();

        const page_size = writer.page_size_for(&built, self.params);
        var placement = try self.place(&built, page_size, diagnostic);
        defer placement.deinit(allocator);
        const tau = try graph.affinity_threshold(quant.BuildCodes, allocator, codes, n, self.options.affinity_percent, self.options.seed);
        const colors = try graph.color(quant.BuildCodes, allocator, codes, &placement, tau);
        defer allocator.free(colors);
        self.build_codes.?.deinit();
        self.build_codes = null;

        self.control.enter(.write, n);
        self.written = try writer.write(.{
            .allocator = allocator,
            .dir = self.dir,
            .graph = &built,
            .placement = &placement,
            .colors = colors,
            .work_codes = &self.work_codes.?,
            .work_vectors = self.work_vectors,
            .vector_bytes = self.options.dim * self.options.dtype.bytes(),
            .params = self.params,
            .page_size = page_size,
            .salt = self.salt,
            .links_kept = @min(self.options.links_kept, self.options.degree),
            .header = .{
                .format_version = layout.format_version,
                .entry_vertex = 0,
                .n = n,
                .dim_in = self.options.dim,
                .dim_work = self.dim_work,
                .dim_code = self.params.dim,
                .metric = @intFromEnum(self.options.metric),
                .memory_bits = self.params.memory_bits,
                .record_bits = self.params.record_bits,
                .rotation_seed = self.options.seed,
                .norm2_min = 0,
                .norm2_step = 0,
                .factor_upper_min = 0,
                .factor_upper_step = 0,
                .factor_full_min = 0,
                .factor_full_step = 0,
                .tan_upper = 0,
                .tan_full = 0,
                .norm_max = self.norm_max,
            },
            .mean = self.mean,
            .control = &self.control,
        }, diagnostic);
        self.order = try allocator.dupe(u32, placement.order);
        self.drop_work();
        self.control.enter(.commit, n);
    }

    /// A page is filled by what its records are thought to take. Lists are only known after placement, so the first
    /// guess comes from experience; where it proves wrong, a second placement knows better.
    fn place(self: *Builder, built: *const graph.Graph, page_size: u32, diagnostic: *Diagnostic) Error!graph.Placement {
        const guess = 12.9 + 0.7 * (@log2(@as(f64, @floatFromInt(built.n)) + 1) - @log2(1e6));
        var placement = try self.place_with(built, page_size, @max(6, guess), diagnostic);
        errdefer placement.deinit(self.allocator);
        const measured = try writer.bits_per_edge(self.allocator, built, &placement);
        // Too small a guess breaks pages apart, too large a one leaves them unfilled.
        if (measured <= guess and measured >= 0.95 * guess) return placement;
        const again = try self.place_with(built, page_size, 1.015 * measured, diagnostic);
        placement.deinit(self.allocator);
        return again;
    }

    fn place_with(self: *Builder, built: *const graph.Graph, page_size: u32, bits_per_edge: f64, diagnostic: *Diagnostic) Error!graph.Placement {
        self.control.enter(.place, built.n);
        const sizes = try self.allocator.alloc(u16, built.n);
        defer self.allocator.free(sizes);
        for (sizes, built.degrees) |*size, degree| {
            const list_bytes = 1.5 + bits_per_edge * @as(f64, @floatFromInt(degree)) / 8;
            size.* = @intCast(self.params.lower_bytes() + layout.page.slot_bytes + @as(u32, @intFromFloat(@ceil(list_bytes))));
        }
        return graph.place(quant.BuildCodes, self.allocator, &self.build_codes.?, built, .{
            .page_bytes_budget = page_size - layout.page.header_bytes,
            .record_bytes = sizes,
            .threads = self.options.threads,
            .progress = &self.control.done,
            .cancel = &self.control.canceled,
        }) catch |err| graph_error(diagnostic, err);
    }

    // ---- the end ----

    pub fn commit(self: *Builder, extra_files: []const []const u8, extra_json: ?[]const u8, diagnostic: *Diagnostic) Error!void {
        const written = self.written orelse {
            diagnostic.say("commit comes after run", .{});
            return error.InvalidArgument;
        };
        try self.control.check();
        var arena = std.heap.ArenaAllocator.init(self.allocator);
        defer arena.deinit();
        var entries: std.ArrayList(layout.manifest.File) = .empty;
        for (written.files.items) |file|
            try entries.append(arena.allocator(), .{ .name = file.name, .bytes = file.summary.bytes, .checksum = try sum_text(arena.allocator(), file.summary.checksum) });
        for (extra_files) |name| {
            if (name.len == 0 or std.mem.indexOfAny(u8, name, "/\\") != null or std.mem.eql(u8, name, layout.manifest.file_name)) {
                diagnostic.argument = "extra_files";
                diagnostic.say("'{s}' is no name of a file inside the folder", .{name});
                return error.InvalidArgument;
            }
            try sync_file(self.dir, name, diagnostic);
            const summary = try files.summarize(self.allocator, self.dir, name, diagnostic);
            try entries.append(arena.allocator(), .{ .name = try arena.allocator().dupe(u8, name), .bytes = summary.bytes, .checksum = try sum_text(arena.allocator(), summary.checksum) });
        }
        const user: std.json.Value = if (extra_json) |text|
            std.json.parseFromSliceLeaky(std.json.Value, arena.allocator(), text, .{}) catch {
                diagnostic.argument = "extra_json";
                diagnostic.say("extra_json is not JSON", .{});
                return error.InvalidArgument;
            }
        else
            .null;
        const o = self.options;
        const text = try layout.manifest.write(arena.allocator(), &.{
            .format_version = layout.format_version,
            .uuid = &self.uuid,
            .n = o.n,
            .dim = o.dim,
            .metric = @tagName(o.metric),
            .dtype = @tagName(o.dtype),
            .memory_bits = o.memory_bits,
            .record_bits = o.record_bits,
            .degree = o.degree,
            .build_list_size = o.build_list_size,
            .alpha = o.alpha,
            .seed = o.seed,
            .links_built = written.links_built,
            .page_size = written.page_size,
            .page_count = written.page_count,
            .edges = written.edges,
            .adjacency_bits = written.adjacency_bits,
            .stores_vectors = o.store_vectors,
            .files = entries.items,
            .user = user,
        });
        self.dir.deleteFile(marker_name) catch {};
        files.replace(self.dir, layout.manifest.file_name, text, diagnostic) catch |err| {
            // Still ours to clean up: without the marker the folder would look like somebody else's.
            if (self.dir.createFile(marker_name, .{ .truncate = false })) |file| file.close() else |_| {}
            return err;
        };
        self.committed = true;
        self.control.enter(.done, o.n);
    }
};

fn sum_text(allocator: std.mem.Allocator, checksum: u64) error{OutOfMemory}![]u8 {
    return allocator.dupe(u8, &layout.manifest.checksum_text(checksum));
}

fn sync_file(dir: std.fs.Dir, name: []const u8, diagnostic: *Diagnostic) Error!void {
    const file = dir.openFile(name, .{}) catch |err| return diagnostics.file_error(diagnostic, name, "open", err);
    defer file.close();
    file.sync() catch |err| return diagnostics.file_error(diagnostic, name, "sync", err);
}

fn uuid_text(bytes: *const [16]u8) [36]u8 {
    var out: [36]u8 = undefined;
    var at: usize = 0;
    for (bytes, 0..) |byte, i| {
        if (i == 4 or i == 6 or i == 8 or i == 10) {
            out[at] = '-';
            at += 1;
        }
        out[at..][0..2].* = std.fmt.bytesToHex([1]u8{byte}, .lower);
        at += 2;
    }
    return out;
}

fn graph_error(diagnostic: *Diagnostic, err: graph.Error) Error {
    return switch (err) {
        error.Canceled => error.Canceled,
        error.OutOfMemory => error.OutOfMemory,
        error.ThreadFailed => {
            diagnostic.say("the system refused to start a thread", .{});
            return error.OutOfMemory;
        },
    };
}

/// Resident bytes of a build at its peak: the graph stage, and the writing that follows it.
pub fn memory_needed(options: Options, dim_code: u32) u64 {
    const codes = @as(u64, dim_code) + @sizeOf(quant.BuildCodes.PairFactors);
    const neighbors = @as(u64, options.degree) * 4;
    const small = 16; // degrees, locks, placement
    return options.n * (codes + neighbors + small);
}

fn check_options(options: Options, diagnostic: *Diagnostic) Error!void {
    const Check = struct {
        fn range(d: *Diagnostic, argument: []const u8, value: u64, low: u64, high: u64) Error!void {
            if (value >= low and value <= high) return;
            d.argument = argument;
            d.say("{s} is {d}; it must lie within {d} and {d}", .{ argument, value, low, high });
            return error.InvalidArgument;
        }
    };
    if (options.n == 0) {
        diagnostic.argument = "vectors";
        diagnostic.say("an index needs at least one vector", .{});
        return error.Empty;
    }
    try Check.range(diagnostic, "row_count", options.n, 1, graph.vertices_max);
    try Check.range(diagnostic, "dim", options.dim, 1, base.limits.dim_max);
    try Check.range(diagnostic, "memory_bits", options.memory_bits, 1, 6);
    try Check.range(diagnostic, "record_bits", options.record_bits, 0, 8);
    try Check.range(diagnostic, "degree", options.degree, 4, 128);
    try Check.range(diagnostic, "build_list_size", options.build_list_size, 8, 2000);
    try Check.range(diagnostic, "threads", options.threads, 1, 1024);
    if (!(options.alpha >= 1 and options.alpha <= 4)) {
        diagnostic.argument = "alpha";
        diagnostic.say("alpha is {d}; it must lie within 1 and 4", .{options.alpha});
        return error.InvalidArgument;
    }
}

const Folder = struct { dir: std.fs.Dir, made: bool, marker: std.fs.File };

fn claim_folder(path: []const u8, overwrite: bool, diagnostic: *Diagnostic) Error!Folder {
    var made = true;
    std.fs.cwd().makeDir(path) catch |err| switch (err) {
        error.PathAlreadyExists => made = false,
        error.FileNotFound, error.NotDir => {
            diagnostic.argument = "path";
            diagnostic.say("cannot create {s}: its parent folder does not exist", .{path});
            return error.InvalidArgument;
        },
        else => {
            const failure = diagnostics.file_error(diagnostic, path, "create", err);
            diagnostic.argument = "path";
            return failure;
        },
    };
    errdefer if (made) std.fs.cwd().deleteDir(path) catch {};
    var dir = std.fs.cwd().openDir(path, .{ .iterate = true }) catch |err| return diagnostics.file_error(diagnostic, path, "open", err);
    errdefer dir.close();
    const had_marker = exists(dir, marker_name);
    const had_manifest = exists(dir, layout.manifest.file_name);
    var iterator = dir.iterate();
    const empty = (iterator.next() catch |err| return diagnostics.file_error(diagnostic, path, "list", err)) == null;
    if (had_manifest and !overwrite) {
        diagnostic.argument = "path";
        diagnostic.say("{s} already holds an index; pass overwrite to replace it", .{path});
        return error.Exists;
    }
    if (!had_manifest and !had_marker and !empty) {
        diagnostic.argument = "path";
        diagnostic.say("{s} holds files that are not an index", .{path});
        return error.Exists;
    }
    // The lock ends with its process: a killed build's folder can be taken over, a living one's cannot.
    const marker = dir.createFile(marker_name, .{ .truncate = false, .lock = .exclusive, .lock_nonblocking = true }) catch |err| switch (err) {
        error.WouldBlock => {
            diagnostic.argument = "path";
            diagnostic.say("another build is at work in {s}", .{path});
            return error.Exists;
        },
        else => return diagnostics.file_error(diagnostic, marker_name, "create", err),
    };
    errdefer marker.close();
    if (had_manifest) dir.deleteFile(layout.manifest.file_name) catch |err|
        return diagnostics.file_error(diagnostic, layout.manifest.file_name, "remove", err);
    return .{ .dir = dir, .made = made, .marker = marker };
}

fn exists(dir: std.fs.Dir, name: []const u8) bool {
    dir.access(name, .{}) catch return false;
    return true;
}

/// One thread's share of the second pass: a run of rows from their input to what the work file stores.
const EncodeThread = struct {
    encoder: quant.Encoder,
    build_encoder: quant.Encoder,
    row: []f32, // dim_work
    rotated: []f32, // dim_code
    code: []u16,
    stored: []u8,
    ranges: work.Ranges = .{},
    changed_row: ?u64 = null,
    thread: ?std.Thread = null,
    builder: *Builder = undefined,
    rows: [*]const u8 = undefined,
    stride: u64 = 0,
    first: u64 = 0,
    count: u32 = 0,

    fn init(allocator: std.mem.Allocator, dim_work: u32, params: quant.CodeParams) Error!EncodeThread {
        var encoder = try quant.Encoder.init(allocator, params);
        errdefer encoder.deinit(allocator);
        var build_encoder = try quant.Encoder.init(allocator, quant.BuildCodes.params_of(params.dim));
        errdefer build_encoder.deinit(allocator);
        const row = try allocator.alloc(f32, dim_work);
        errdefer allocator.free(row);
        const rotated = try allocator.alloc(f32, params.dim);
        errdefer allocator.free(rotated);
        const code = try allocator.alloc(u16, params.dim);
        errdefer allocator.free(code);
        const stored = try allocator.alloc(u8, run_rows * work.row_bytes_of(params));
        return .{ .encoder = encoder, .build_encoder = build_encoder, .row = row, .rotated = rotated, .code = code, .stored = stored };
    }

    fn deinit(self: *EncodeThread, allocator: std.mem.Allocator) void {
        self.encoder.deinit(allocator);
        self.build_encoder.deinit(allocator);
        allocator.free(self.row);
        allocator.free(self.rotated);
        allocator.free(self.code);
        allocator.free(self.stored);
    }

    fn start(self: *EncodeThread, builder: *Builder, rows: [*]const u8, stride: u64, first: u64, count: u32) void {
        self.builder = builder;
        self.rows = rows;
        self.stride = stride;
        self.first = first;
        self.count = count;
        self.changed_row = null;
        self.thread = null;
    }

    fn run(self: *EncodeThread) void {
        const b = self.builder;
        const params = b.params;
        const row_bytes = b.options.dim * b.options.dtype.bytes();
        const stored_bytes = work.row_bytes_of(params);
        for (0..self.count) |i| {
            space.convert(b.options.dtype, self.rows[i * self.stride ..][0..row_bytes], self.row[0..b.options.dim]);
            if (!space.is_finite(self.row[0..b.options.dim])) {
                self.changed_row = self.first + i;
                return;
            }
            space.place_row(b.options.metric, self.row, b.norm_max);
            for (self.row, b.mean) |*value, mean| value.* -= mean;
            b.rotation.apply(self.row, self.rotated);
            b.build_codes.?.set(@intCast(self.first + i), &self.build_encoder, self.rotated, self.code);
            const factors = self.encoder.encode(self.rotated, self.code);
            work.store_row(params, self.code, factors, self.stored[i * stored_bytes ..][0..stored_bytes], &self.ranges);
        }
    }
};
