//! A build from its first row to its manifest. Rows stream through twice (scan: check, mean, norms; add: rotate and
//! encode); the graph is built over 8-bit codes in memory; codes as they will be stored wait in a work file in row
//! order until placement has given every row its vertex.
//!
//! A folder under construction holds a marker and no manifest, so it does not open. A build that fails or is canceled
//! takes away what it made. One that was killed leaves its work: the next build of the same path goes on from there if
//! its rows and options are the same (resume.zig), and begins anew if they are not.
const std = @import("std");
const base = @import("base");
const layout = @import("layout");
const quant = @import("quant");
const graph = @import("graph");
const diagnostics = @import("diagnostic.zig");
const files = @import("files.zig");
const folders = @import("folder.zig");
const resume_room = @import("resume.zig");
const space = @import("space.zig");
const work = @import("work.zig");
const writer = @import("writer.zig");
const vectors_file = @import("vectors.zig");
const WarmStart = @import("warm_start.zig").WarmStart;
const option_room = @import("options.zig");
const reader = @import("reader.zig");
const clusters = @import("clusters.zig");
const Partly = @import("warm_start.zig").Partly;
const PageWalk = reader.PageWalk;
const ListFile = work.ListFile;
const Control = option_room.Control;
const Stage = option_room.Stage;
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const Clusters = clusters.Clusters;

pub const Options = option_room.Options;

pub const Builder = struct {
    allocator: std.mem.Allocator,
    path: []u8,
    dir: std.fs.Dir,
    made_folder: bool,
    /// Locked for as long as the build lives.
    marker: std.fs.File,
    /// An index is there that is not known to be of these rows: nothing of it is touched.
    complete: bool,
    /// The work stays when the build is closed.
    kept: bool = false,
    options: Options,
    plan: option_room.Plan,
    params: quant.CodeParams,
    control: Control = .{},
    uuid: [36]u8,
    salt: u32,

    scanned: u64 = 0,
    /// Of the rows that are not far from all others; zero for inner products, which depend on the origin.
    mean: []f32,
    /// |q|² from which on a query lies outside the rows. Angles have no outside.
    remote_norm2: f32 = std.math.floatMax(f32),
    rotation: quant.Rotation,
    rotation_seed: u64,
    /// Rows that lie evenly over the input, `params.dim` elements each, from which the centers are made.
    sample: []f32,
    sampled: u32 = 0,
    centers: ?quant.Centers = null,
    /// Of codes in tables and of pages; null in builds without them.
    product: ?quant.Product = null,

    /// Of the rows that `scan` saw, each after the other.
    content: u64 = 0,
    added: u64 = 0,
    checkpoint_us: u64,
    work_codes: ?work.CodesFile = null,
    work_points: ?work.PointsFile = null,
    work_vectors: ?work.GrowingFile = null,
    /// vectors.bin, whose rows come after `run`.
    placed_vectors: ?vectors_file.Writer = null,
    encoders: []EncodeThread,
    order: ?[]u32 = null,
    /// An index whose graph this one goes on from.
    warm_start: ?WarmStart = null,
    /// Its codes, where they tell of rows what nothing else does.
    warm_start_codes: ?WarmStartCodes = null,
    /// Which index that is.
    coded_like: u64 = 0,
    written: ?writer.Written = null,
    committed: bool = false,

    /// Vertices of the largest graph of such a build.
    pub fn largest_graph(options: Options, diagnostic: *Diagnostic) Error!u64 {
        try option_room.check(options, diagnostic);
        const plan = try option_room.plan(options, quant.dim_code_of(options.dim), diagnostic);
        return if (plan.partitions > 0) plan.members_max else options.n;
    }

    pub fn open(allocator: std.mem.Allocator, path: []const u8, options: Options, diagnostic: *Diagnostic) Error!*Builder {
        try option_room.check(options, diagnostic);
        const params: quant.CodeParams = .{
            .dim = quant.dim_code_of(options.dim),
            .memory_bits = @intCast(options.memory_bits),
            .record_bits = @intCast(options.record_bits),
        };
        const plan = try option_room.plan(options, params.dim, diagnostic);
        const folder = try folders.claim(path, options.overwrite, diagnostic);
        var dir = folder.dir;
        errdefer folder.marker.close();
        errdefer {
            if (!folder.taken_over) dir.deleteFile(folders.marker_name) catch {};
            dir.close();
            if (folder.made and !folder.taken_over) std.fs.cwd().deleteDir(path) catch {};
        }
        const self = try allocator.create(Builder);
        errdefer allocator.destroy(self);
        const path_copy = try allocator.dupe(u8, path);
        errdefer allocator.free(path_copy);
        const mean = try allocator.alloc(f32, options.dim);
        errdefer allocator.free(mean);
        @memset(mean, 0);
        var rotation = try quant.Rotation.init(allocator, options.dim, options.seed);
        errdefer rotation.deinit(allocator);
        const code_bytes = options.page_geometry(params, 0).code_bytes;
        const room_bytes = option_room.sample_room_bytes(options);
        const of_centers = quant.Centers.sample_for(options.n, params.dim, room_bytes);
        const sampled_max = if (code_bytes > 0) @max(of_centers, quant.Product.sample_for(options.n, params.dim, room_bytes)) else of_centers;
        const sample = try base.alloc_untouched(allocator, f32, @as(usize, sampled_max) * params.dim);
        errdefer base.free_untouched(allocator, sample);
        const encoders = try allocator.alloc(EncodeThread, @max(1, options.threads));
        errdefer allocator.free(encoders);
        var made: usize = 0;
        errdefer for (encoders[0..made]) |*encoder| encoder.deinit(allocator);
        for (encoders) |*encoder| {
            encoder.* = try EncodeThread.init(allocator, options.dim, params, code_bytes);
            made += 1;
        }
        self.* = .{
            .allocator = allocator,
            .path = path_copy,
            .dir = dir,
            .made_folder = folder.made,
            .marker = folder.marker,
            .complete = folder.complete,
            .options = options,
            .plan = plan,
            .params = params,
            .uuid = undefined, // `take_name` sets both
            .salt = undefined,
            .mean = mean,
            .rotation = rotation,
            .rotation_seed = options.seed,
            .sample = sample,
            .encoders = encoders,
            .checkpoint_us = base.nowMicros(),
        };
        self.control.enter(.scan, options.n);
        return self;
    }

    pub fn close(self: *Builder) void {
        const allocator = self.allocator;
        self.close_work();
        const removed = !self.kept and !self.complete;
        if (removed) {
            if (!self.committed) folders.remove(self.dir, &folders.index_names);
            folders.remove(self.dir, &folders.large_work_names); // a build killed while it removed them left some
            folders.remove(self.dir, &folders.small_work_names);
        }
        // The marker goes last: a folder with a marker can be taken over, whatever else it holds.
        if (removed or (self.complete and !folders.exists(self.dir, resume_room.encode_name))) self.dir.deleteFile(folders.marker_name) catch {};
        self.marker.close();
        self.dir.close();
        // Only when empty: files of other programs are not removed.
        if (removed and !self.committed and self.made_folder) std.fs.cwd().deleteDir(self.path) catch {};
        for (self.encoders) |*encoder| encoder.deinit(allocator);
        allocator.free(self.encoders);
        self.forget_order();
        if (self.placed_vectors) |*vectors| vectors.deinit();
        self.close_warm_start_codes();
        if (self.warm_start) |*warm_start| warm_start.deinit(allocator);
        if (self.written) |*written| written.deinit(allocator);
        base.free_untouched(allocator, self.sample);
        if (self.centers) |*centers| centers.deinit(allocator);
        if (self.product) |*product| product.deinit(allocator);
        self.rotation.deinit(allocator);
        allocator.free(self.mean);
        allocator.free(self.path);
        allocator.destroy(self);
    }

    /// Lets what was done stay when the build is closed, for a later one of the same rows; saves how far encoding came.
    pub fn keep(self: *Builder, diagnostic: *Diagnostic) Error!void {
        self.kept = true;
        if (self.work_codes != null and self.added > 0 and self.added < self.options.n) try self.save_encoded(diagnostic);
    }

    fn close_work(self: *Builder) void {
        if (self.work_codes) |*codes| codes.file.deinit();
        if (self.work_points) |*points| points.deinit();
        if (self.work_vectors) |*vectors| vectors.deinit();
        self.work_codes = null;
        self.work_points = null;
        self.work_vectors = null;
    }

    /// The graph goes on from that of an index in which most of these rows were: `rows` has the row of each of its
    /// vertices, `Former.gone` where it has none. Said before any row, since memory is shared out by it; its
    /// lists are read by `run`.
    pub fn go_on_from(self: *Builder, path: []const u8, rows: []const u32, diagnostic: *Diagnostic) Error!void {
        const warm_start = try WarmStart.init(self.allocator, path, rows, &self.options, diagnostic);
        self.close_warm_start_codes();
        if (self.warm_start) |*before| before.deinit(self.allocator);
        self.warm_start = warm_start;
        self.warm_start_codes = try WarmStartCodes.open(self.allocator, &self.warm_start.?, &self.options, self.params, diagnostic);
        if (self.warm_start_codes) |*codes| {
            const rotation = try quant.Rotation.init(self.allocator, self.options.dim, codes.opened.header.rotation_seed);
            self.rotation.deinit(self.allocator);
            self.rotation = rotation;
            self.rotation_seed = codes.opened.header.rotation_seed;
            self.coded_like = base.checksum(codes.opened.manifest().uuid);
        }
        if (self.plan.partitions == 0) return;
        self.plan.goes_on = false;
        if (warm_start.beside(self.options.degree)) |beside| if (option_room.plan_beside(self.options, self.params.dim, beside)) |plan| {
            self.plan = plan;
        };
        self.drop_unused_warm_start();
    }

    /// Partitions that do not go on from a graph need nothing of it but its codes, until rows are encoded.
    fn drop_unused_warm_start(self: *Builder) void {
        if (self.plan.partitions == 0 or self.plan.goes_on or self.warm_start_codes != null) return;
        if (self.warm_start) |*warm_start| warm_start.deinit(self.allocator);
        self.warm_start = null;
    }

    fn close_warm_start_codes(self: *Builder) void {
        if (self.warm_start_codes) |*codes| codes.deinit();
        self.warm_start_codes = null;
    }

    // ---- first pass ----

    pub fn scan(self: *Builder, rows: [*]const u8, row_count: u64, row_stride: u64, diagnostic: *Diagnostic) Error!void {
        try self.control.check();
        try self.check_count(self.scanned, row_count, diagnostic);
        const row = self.encoders[0].row[0..self.options.dim];
        const row_bytes = self.options.dim * self.options.dtype.bytes();
        for (0..@intCast(row_count)) |i| {
            const given = rows[i * row_stride ..][0..row_bytes];
            self.content = std.hash.int(self.content ^ base.checksum(given));
            space.convert(self.options.dtype, given, row);
            if (!space.is_finite(row)) {
                diagnostic.argument = "vectors";
                diagnostic.row = @intCast(self.scanned + i);
                diagnostic.say("row {d} of vectors holds NaN, infinity or a magnitude above {d}", .{ self.scanned + i, space.magnitude_max });
                return error.NotFinite;
            }
            self.draw(self.scanned + i, row);
            if (i % 4096 == 0) try self.control.check();
        }
        self.scanned += row_count;
        self.control.done.store(self.scanned, .monotonic);
        if (self.scanned == self.options.n) try self.finish_scan(diagnostic);
    }

    /// Takes a row into the sample if it is its turn.
    fn draw(self: *Builder, index: u64, row: []const f32) void {
        const size = self.sample.len / self.params.dim;
        if (index * size / self.options.n == (index + 1) * size / self.options.n) return;
        @memcpy(self.sample[self.sampled * self.params.dim ..][0..row.len], row);
        self.sampled += 1;
    }

    fn make_centers(self: *Builder) error{OutOfMemory}!void {
        const dim = self.params.dim;
        const own = &self.encoders[0];
        for (0..self.sampled) |i| {
            const drawn = self.sample[i * dim ..][0..dim];
            @memcpy(own.row, drawn[0..self.options.dim]);
            self.to_code_space(own.row, drawn);
        }
        if (self.options.metric == .l2) self.remote_norm2 = try space.remote_norm2(self.allocator, self.sample[0 .. self.sampled * dim], dim);
        try space.pull_in(self.allocator, self.sample[0 .. self.sampled * dim], dim);
        self.centers = try quant.Centers.train(self.allocator, dim, self.sample[0 .. self.sampled * dim], quant.Centers.count_for(self.options.n));
        const mean = try self.allocator.dupe(f32, self.mean);
        defer self.allocator.free(mean);
        if (self.warm_start_codes) |*codes| if (try codes.centers_for(&self.rotation, self.mean, &self.centers.?, self.sample[0 .. self.sampled * dim])) |centers| {
            self.centers.?.deinit(self.allocator);
            self.centers = centers;
            @memcpy(self.mean, codes.opened.mean);
            self.remote_norm2 = @max(self.remote_norm2, codes.opened.header.remote_norm2);
            codes.is_copied = true;
        };
        if (self.page_geometry().code_bytes > 0) try self.make_product(mean);
        base.free_untouched(self.allocator, self.sample);
        self.sample = &.{};
    }

    /// `mean` was subtracted from the rows of the sample.
    fn make_product(self: *Builder, mean: []const f32) error{OutOfMemory}!void {
        const dim = self.options.dim;
        const row = self.encoders[0].row[0..dim];
        for (0..self.sampled) |i| {
            self.rotation.undo(self.sample[i * self.params.dim ..][0..self.params.dim], row);
            for (self.sample[i * dim ..][0..dim], row, mean, self.mean) |*value, turned_back, subtracted, own| value.* = turned_back + (subtracted - own);
        }
        self.product = try quant.Product.train(self.allocator, self.sample[0 .. self.sampled * dim], dim, self.page_geometry().code_bytes, self.options.seed);
    }

    /// `row` as codes are made of it.
    fn to_code_space(self: *const Builder, row: []f32, rotated: []f32) void {
        space.place(self.options.metric, row);
        for (row, self.mean) |*value, mean| value.* -= mean;
        self.rotation.apply(row, rotated);
    }

    fn check_count(self: *const Builder, before: u64, row_count: u64, diagnostic: *Diagnostic) Error!void {
        if (row_count <= self.options.n - before) return;
        diagnostic.argument = "vectors";
        diagnostic.say("{d} rows were announced, but {d} came", .{ self.options.n, before + row_count });
        return error.InvalidArgument;
    }

    fn take_name(self: *Builder) void {
        var random_bytes: [16]u8 = undefined;
        if (self.options.threads == 1) {
            // A build that promises the same bytes every time cannot draw its name from the system. One of other
            // rows has another name: it distinguishes the shards of a collection.
            var prng = base.Prng.init(self.options.seed ^ (self.options.n << 20) ^ self.options.dim ^ self.content);
            for (0..2) |i| std.mem.writeInt(u64, random_bytes[i * 8 ..][0..8], prng.next(), .little);
        } else std.crypto.random.bytes(&random_bytes);
        random_bytes[6] = (random_bytes[6] & 0x0f) | 0x40; // version 4
        random_bytes[8] = (random_bytes[8] & 0x3f) | 0x80;
        self.uuid = uuid_text(&random_bytes);
        self.salt = std.mem.readInt(u32, random_bytes[0..4], .little);
    }

    fn finish_scan(self: *Builder, diagnostic: *Diagnostic) Error!void {
        self.take_name();
        const drawn = self.sample[0 .. self.sampled * self.params.dim];
        for (0..self.sampled) |i| space.place(self.options.metric, drawn[i * self.params.dim ..][0..self.options.dim]);
        if (self.options.metric != .ip) try space.mean(self.allocator, drawn, self.params.dim, self.mean);
        try self.make_centers();
        self.control.enter(.encode, self.options.n);
        if (self.complete) {
            if (self.options.restart or !try self.take_up() or self.written == null) {
                diagnostic.argument = "path";
                diagnostic.say("{s} already holds an index, of other vectors or options; overwrite=True or --overwrite replaces it", .{self.path});
                return error.Exists;
            }
            // Of these rows: what is left to do is done as if the manifest had not been written.
            self.dir.deleteFile(layout.manifest.file_name) catch |err|
                return diagnostics.file_error(diagnostic, layout.manifest.file_name, "remove", err);
            self.complete = false;
        } else if (self.options.restart or !try self.take_up()) {
            folders.remove(self.dir, &folders.index_names);
            folders.remove(self.dir, &folders.large_work_names);
            folders.remove(self.dir, &folders.small_work_names);
        }
        if (self.written == null and self.work_codes == null) try self.begin_encoding(diagnostic);
        self.control.done.store(self.added, .monotonic);
    }

    // ---- where a killed build was ----

    /// Of the input and the options.
    fn input_identity(self: *const Builder) u64 {
        return base.checksum(std.mem.asBytes(&[_]u64{ resume_room.version, layout.format_version, self.options.identity(), self.content, self.coded_like, self.sampled }));
    }

    /// Of all that follows from encoding: builds on several threads share nothing but their input.
    pub fn identity(self: *const Builder) u64 {
        return base.checksum(std.mem.asBytes(&[_]u64{ self.input_identity(), base.checksum(&self.uuid), self.plan.partitions }));
    }

    /// Finds what a killed build of this input left. False if that is nothing.
    fn take_up(self: *Builder) error{OutOfMemory}!bool {
        const allocator = self.allocator;
        const n: u32 = @intCast(self.options.n);
        const encoded = try resume_room.load_encoded(allocator, self.dir, self.input_identity()) orelse return false;
        self.uuid = encoded.uuid;
        self.salt = encoded.salt;
        if (try resume_room.load_written(allocator, self.dir, self.identity(), &folders.index_names)) |found| {
            var written = found;
            if (try resume_room.load_placed(allocator, self.dir, self.identity(), n)) |placed| {
                var own = placed;
                defer own.deinit(allocator);
                self.order = try allocator.dupe(u32, own.placement.order);
                self.written = written;
                self.added = self.options.n;
                self.resume_at(.commit, 0);
                return true;
            }
            written.deinit(allocator);
        }
        if (!try self.reopen_work(&encoded)) return true;
        self.added = encoded.rows;
        if (self.added < self.options.n) {
            self.resume_at(.encode, self.added);
            return true;
        }
        if (try resume_room.look_at_graph(allocator, self.dir, self.identity(), self.plan.partitions)) |left| {
            if (!left.whole) {
                self.resume_at(.graph, left.vertices);
            } else if (try resume_room.load_placed(allocator, self.dir, self.identity(), n)) |placed| {
                var own = placed;
                own.deinit(allocator);
                self.resume_at(.write, 0);
            } else self.resume_at(.place, 0);
        } else self.resume_at(.graph, 0);
        return true;
    }

    fn resume_at(self: *Builder, stage: Stage, done: u64) void {
        self.control.enter(stage, self.options.n);
        self.control.resumed_done.store(done, .monotonic);
        self.control.resumed.store(@intFromEnum(stage), .release);
    }

    fn reopen_work(self: *Builder, encoded: *const resume_room.Encoded) error{OutOfMemory}!bool {
        var codes = try work.GrowingFile.reopen(self.allocator, self.dir, work.codes_name, encoded.codes) orelse return false;
        var points = try work.GrowingFile.reopen(self.allocator, self.dir, work.points_name, encoded.points) orelse {
            codes.deinit();
            return false;
        };
        if (self.options.store_vectors) {
            self.work_vectors = try work.GrowingFile.reopen(self.allocator, self.dir, work.vectors_name, encoded.vectors) orelse {
                codes.deinit();
                points.deinit();
                return false;
            };
        }
        self.work_codes = .init(codes, self.params, self.page_geometry().code_bytes);
        self.work_codes.?.errors = encoded.errors;
        self.work_points = .init(points, self.params.dim);
        return true;
    }

    fn begin_encoding(self: *Builder, diagnostic: *Diagnostic) Error!void {
        const n: u32 = @intCast(self.options.n);
        const code_bytes = self.page_geometry().code_bytes;
        const row_bytes = work.row_bytes_of(self.params) + code_bytes;
        const warm_start_bytes = if (self.warm_start) |*warm_start| warm_start.memory_bytes(self.options.degree) + warm_start.codes_bytes(self.params) else 0;
        const held = option_room.held(self.options, self.plan, self.params, row_bytes, warm_start_bytes);
        self.work_codes = .init(try self.work_file(work.codes_name, held.codes, self.options.n * row_bytes, diagnostic), self.params, code_bytes);
        self.work_points = if (held.points) try work.PointsFile.hold(self.allocator, n, self.params.dim) else .init(try self.work_file(work.points_name, false, 0, diagnostic), self.params.dim);
        const vector_bytes = self.options.dim * self.options.dtype.bytes();
        if (self.options.store_vectors and !self.options.vectors_last) self.work_vectors = try self.work_file(work.vectors_name, held.vectors, self.options.n * vector_bytes, diagnostic);
    }

    fn work_file(self: *Builder, name: []const u8, is_held: bool, bytes: u64, diagnostic: *Diagnostic) Error!work.GrowingFile {
        if (is_held) return .hold(self.allocator, name, @intCast(bytes));
        return .create(self.allocator, self.dir, name, diagnostic);
    }

    fn save_encoded(self: *Builder, diagnostic: *Diagnostic) Error!void {
        if (self.options.transient) {
            try self.work_codes.?.file.flush(diagnostic);
            try self.work_points.?.file.flush(diagnostic);
            if (self.work_vectors) |*vectors| try vectors.flush(diagnostic);
            return;
        }
        const encoded: resume_room.Encoded = .{
            .rows = self.added,
            .uuid = self.uuid,
            .salt = self.salt,
            .errors = self.work_codes.?.errors,
            .codes = try self.work_codes.?.file.sync(diagnostic),
            .points = try self.work_points.?.file.sync(diagnostic),
            .vectors = if (self.work_vectors) |*vectors| try vectors.sync(diagnostic) else .{},
        };
        try resume_room.save_encoded(self.allocator, self.dir, self.input_identity(), &encoded, diagnostic);
        self.checkpoint_us = base.nowMicros();
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
                if (self.warm_start_codes) |*codes| try codes.fill(encoder, diagnostic);
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
                try self.work_codes.?.append(encoder.stored[0 .. encoder.count * self.work_codes.?.row_bytes], &encoder.errors, diagnostic);
                try self.work_points.?.append(&encoder.points, encoder.count, diagnostic);
                encoder.errors = .{};
            }
            self.control.done.store(self.added + at, .monotonic);
        }
        if (self.work_vectors) |*file| {
            for (0..@intCast(row_count)) |i| try file.append(rows[i * row_stride ..][0..row_bytes], diagnostic);
        }
        self.added += row_count;
        const due = base.nowMicros() - self.checkpoint_us >= @as(u64, self.options.checkpoint_ms) * std.time.us_per_ms;
        if (self.added == self.options.n or due) try self.save_encoded(diagnostic);
    }

    // ---- graph, placement, pages ----

    pub fn run(self: *Builder, diagnostic: *Diagnostic) Error!void {
        if (self.added != self.options.n) {
            diagnostic.argument = "vectors";
            diagnostic.say("{d} rows were announced, but only {d} came", .{ self.options.n, self.added });
            return error.InvalidArgument;
        }
        const n = self.options.n;
        self.close_warm_start_codes();
        self.drop_unused_warm_start();
        if (self.written != null) return self.control.enter(.commit, n);
        if (self.plan.partitions > 0) try self.run_partitioned(diagnostic) else try self.run_whole(diagnostic);
        if (!self.options.transient) try resume_room.save_written(self.allocator, self.dir, self.identity(), &self.written.?, diagnostic);
        self.close_work();
        folders.remove(self.dir, &folders.large_work_names);
        self.control.enter(.commit, n);
    }

    fn run_whole(self: *Builder, diagnostic: *Diagnostic) Error!void {
        const n: u32 = @intCast(self.options.n);
        const allocator = self.allocator;
        var codes: ?quant.BuildCodes = null;
        defer if (codes) |*own| own.deinit();
        var built = try make_graph(self, n, &codes, diagnostic);
        defer built.deinit(allocator);
        var placed = try make_placement(self, &built, &codes, diagnostic);
        defer placed.deinit(allocator);
        if (codes) |*own| own.deinit();
        codes = null;
        try self.write_index(.{ .graph = &built }, built.entry, &placed, diagnostic);
    }

    fn run_partitioned(self: *Builder, diagnostic: *Diagnostic) Error!void {
        var joined = try self.join_partitions(diagnostic);
        defer joined.placed.deinit(self.allocator);
        defer joined.lists.deinit();
        try self.write_index(.{ .placed = &joined.lists }, joined.entry_row, &joined.placed, diagnostic);
    }

    const Joined = struct { placed: resume_room.Placed, lists: ListFile, entry_row: u32 };

    fn join_partitions(self: *Builder, diagnostic: *Diagnostic) Error!Joined {
        const allocator = self.allocator;
        var partitions = try Partitions.build(self, diagnostic);
        defer partitions.deinit();
        const found = try resume_room.load_placed(allocator, self.dir, self.identity(), partitions.n);
        var placed = found orelse try partitions.place();
        errdefer placed.deinit(allocator);
        if (found == null and !self.options.transient) try resume_room.save_placed(allocator, self.dir, self.identity(), &placed, diagnostic);
        const lists = try partitions.placed_lists(placed.placement.order);
        return .{ .placed = placed, .lists = lists, .entry_row = partitions.clusters.entry };
    }

    pub fn page_geometry(self: *const Builder) layout.page.Geometry {
        return self.options.page_geometry(self.params, self.salt);
    }

    /// Takes the order of the placement.
    fn write_index(self: *Builder, neighbors: writer.Neighbors, entry_row: u32, placed: *resume_room.Placed, diagnostic: *Diagnostic) Error!void {
        const n = self.options.n;
        self.control.enter(.write, n);
        self.written = try writer.write(.{
            .allocator = self.allocator,
            .dir = self.dir,
            .neighbors = neighbors,
            .degree_max = self.options.degree,
            .entry_row = entry_row,
            .placement = &placed.placement,
            .colors = placed.colors,
            .work_codes = &self.work_codes.?,
            .work_vectors = if (self.work_vectors) |*vectors| vectors else null,
            .vector_bytes = self.options.dim * self.options.dtype.bytes(),
            .params = self.params,
            .geometry = self.page_geometry(),
            .links_kept = self.options.links(),
            .rotation = &self.rotation,
            .product = if (self.product) |*product| product else null,
            .page_records = self.options.page_records(self.page_geometry()),
            .record_codes = self.options.record_code_bytes > 0,
            .header = .{
                .format_version = layout.format_version_of(self.options.page_codes, self.options.page_codes, self.options.record_code_bytes > 0),
                .entry_vertex = 0,
                .n = n,
                .dim_in = self.options.dim,
                .dim_code = self.params.dim,
                .metric = @intFromEnum(self.options.metric),
                .memory_bits = self.params.memory_bits,
                .record_bits = self.params.record_bits,
                .rotation_seed = self.rotation_seed,
                .tan_upper = 0,
                .tan_full = 0,
                .center_count = self.centers.?.count(),
                .norm2_per_f2 = 0,
                .remote_norm2 = self.remote_norm2,
            },
            .mean = self.mean,
            .centers = &self.centers.?,
            .control = &self.control,
        }, diagnostic);
        self.order = placed.placement.order;
        placed.placement.order = &.{};
    }

    fn forget_order(self: *Builder) void {
        if (self.order) |order| base.free_untouched(self.allocator, order);
        self.order = null;
    }

    /// With `vectors_last`, after `run`: the rows again, in the order of their vertices. So they are written once.
    pub fn add_vectors(self: *Builder, rows: [*]const u8, row_count: u64, row_stride: u64, diagnostic: *Diagnostic) Error!void {
        try self.control.check();
        if (self.written == null or !self.takes_vectors_last()) {
            diagnostic.say("vectors come after run, of a build that takes them last", .{});
            return error.InvalidArgument;
        }
        const row_bytes = self.options.dim * self.options.dtype.bytes();
        if (self.placed_vectors == null) self.placed_vectors = try .create(self.allocator, self.dir, .of(row_bytes, self.salt), diagnostic);
        const vectors = &self.placed_vectors.?;
        vectors.file.diagnostic = diagnostic;
        try self.check_count(vectors.count(), row_count, diagnostic);
        for (0..@intCast(row_count)) |i| try vectors.add(rows[i * row_stride ..][0..row_bytes]);
    }

    fn takes_vectors_last(self: *const Builder) bool {
        return self.options.store_vectors and self.options.vectors_last;
    }

    fn finish_vectors(self: *Builder, diagnostic: *Diagnostic) Error!void {
        const count = if (self.placed_vectors) |*vectors| vectors.count() else 0;
        if (count != self.options.n) {
            diagnostic.argument = "vectors";
            diagnostic.say("{d} rows were announced, but only {d} came after run", .{ self.options.n, count });
            return error.InvalidArgument;
        }
        const vectors = &self.placed_vectors.?;
        vectors.file.diagnostic = diagnostic;
        try self.written.?.files.append(self.allocator, .{ .name = files.file_vectors, .summary = try vectors.finish() });
        vectors.deinit();
        self.placed_vectors = null;
    }

    /// The end of a build: sums are taken of the files that others have written beside the index's own, then the manifest takes
    /// its place, and with it the folder is an index.
    pub fn commit(self: *Builder, extra_files: []const []const u8, extra_json: ?[]const u8, diagnostic: *Diagnostic) Error!void {
        if (self.written == null) {
            diagnostic.say("commit comes after run", .{});
            return error.InvalidArgument;
        }
        try self.control.check();
        if (self.takes_vectors_last()) try self.finish_vectors(diagnostic);
        const written = self.written.?;
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
            .format_version = layout.format_version_of(o.page_codes, o.page_codes, o.record_code_bytes > 0),
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
            .page_links = o.page_links,
            .page_codes = o.page_codes,
            .page_tables = o.page_codes,
            .record_codes = o.record_code_bytes > 0,
            .code_bytes = self.page_geometry().code_bytes,
            .page_records = o.page_records(self.page_geometry()),
            .page_size = written.page_size,
            .page_count = written.page_count,
            .edges = written.edges,
            .adjacency_bits = written.adjacency_bits,
            .stores_vectors = o.store_vectors,
            .files = entries.items,
            .user = user,
        });
        // Marker and small work files stay until the build is closed: until then it may be taken over, and finished.
        try files.replace(self.dir, layout.manifest.file_name, text, diagnostic);
        self.committed = true;
        self.forget_order();
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

// ---- encoding ----
//
// One thread's share of the second pass: a run of rows from their input to what the work files store.

/// Rows are encoded in runs of at most this many, a run a thread at a time.
const run_rows = 1024;

const EncodeThread = struct {
    encoder: quant.Encoder,
    build_encoder: quant.Encoder,
    row: []f32, // dim
    rotated: []f32, // dim_code
    code: []u16,
    /// `stored_bytes` for each row, with its product code at the end.
    stored: []u8,
    stored_bytes: usize,
    product_scratch: []f32,
    points: quant.BuildCodes,
    errors: work.CodeErrors = .{},
    /// Of these rows of the run `stored` has the codes already.
    has_code: std.StaticBitSet(run_rows) = .initEmpty(),
    changed_row: ?u64 = null,
    thread: ?std.Thread = null,
    builder: *Builder = undefined,
    rows: [*]const u8 = undefined,
    stride: u64 = 0,
    first: u64 = 0,
    count: u32 = 0,

    pub fn init(allocator: std.mem.Allocator, dim: u32, params: quant.CodeParams, code_bytes: u32) Error!EncodeThread {
        var encoder = try quant.Encoder.init(allocator, params);
        errdefer encoder.deinit(allocator);
        var build_encoder = try quant.Encoder.init(allocator, quant.BuildCodes.params_of(params.dim));
        errdefer build_encoder.deinit(allocator);
        const row = try allocator.alloc(f32, dim);
        errdefer allocator.free(row);
        const rotated = try allocator.alloc(f32, params.dim);
        errdefer allocator.free(rotated);
        const code = try allocator.alloc(u16, params.dim);
        errdefer allocator.free(code);
        const stored_bytes = work.row_bytes_of(params) + code_bytes;
        const stored = try allocator.alloc(u8, run_rows * stored_bytes);
        errdefer allocator.free(stored);
        const product_scratch = try allocator.alloc(f32, if (code_bytes > 0) @min(dim, quant.Product.axes_max) else 0);
        errdefer allocator.free(product_scratch);
        const points = try quant.BuildCodes.init(run_rows, params.dim);
        return .{
            .encoder = encoder,
            .build_encoder = build_encoder,
            .row = row,
            .rotated = rotated,
            .code = code,
            .stored = stored,
            .stored_bytes = stored_bytes,
            .product_scratch = product_scratch,
            .points = points,
        };
    }

    pub fn deinit(self: *EncodeThread, allocator: std.mem.Allocator) void {
        self.encoder.deinit(allocator);
        self.build_encoder.deinit(allocator);
        allocator.free(self.row);
        allocator.free(self.rotated);
        allocator.free(self.code);
        allocator.free(self.stored);
        allocator.free(self.product_scratch);
        self.points.deinit();
    }

    pub fn start(self: *EncodeThread, builder: *Builder, rows: [*]const u8, stride: u64, first: u64, count: u32) void {
        self.builder = builder;
        self.rows = rows;
        self.stride = stride;
        self.first = first;
        self.count = count;
        self.has_code = .initEmpty();
        self.changed_row = null;
        self.thread = null;
    }

    pub fn run(self: *EncodeThread) void {
        const b = self.builder;
        const params = b.params;
        const row_bytes = b.options.dim * b.options.dtype.bytes();
        const code_begin = work.row_bytes_of(params);
        for (0..self.count) |i| {
            const stored = self.stored[i * self.stored_bytes ..][0..self.stored_bytes];
            space.convert(b.options.dtype, self.rows[i * self.stride ..][0..row_bytes], self.row);
            if (!space.is_finite(self.row)) {
                self.changed_row = self.first + i;
                return;
            }
            b.to_code_space(self.row, self.rotated);
            if (b.product) |*product| product.encode(self.product_scratch, self.row, stored[code_begin..]);
            self.points.set(@intCast(i), &self.build_encoder, self.rotated, self.code);
            if (self.has_code.isSet(i)) continue;
            const centers = &b.centers.?;
            const center = centers.nearest(self.rotated);
            for (self.rotated, centers.at(center)) |*value, own| value.* -= own;
            const factors = self.encoder.encode(self.rotated, self.code);
            const kept = self.encoder.store_factors(space.form(b.options.metric), self.code, factors, centers.at(center), centers.norms2[center]);
            work.store_row(params, self.code, center, &factors, &kept, stored, &self.errors);
        }
    }
};

// ---- codes of a former index ----
//
// Codes of a former index that stores no vectors. They are all that is left of its rows, so a build of the same bits copies
// them, with the mean, the rotation and the centers that they were made with: their rows lose nothing, however often they
// are built again. The rows that come with them are what the codes tell (reader.zig, `decode_vectors`).

const WarmStartCodes = struct {
    allocator: std.mem.Allocator,
    /// The walk points to it, so it must not move.
    opened: *reader.Reader,
    /// codes.bin; of what was passed little stays in memory.
    mapped: files.Mapped,
    walk: PageWalk,
    page: ?layout.page.View = null,
    /// As `Former` has them.
    rows: []const u32,
    next: u32 = 0,
    forgotten: u32 = 0,
    /// Those of the file.
    centers: []const f32,
    /// The new index is made with its centers, so its codes are copied; else they are made anew.
    is_copied: bool = false,

    /// Rows between two times that what was passed leaves memory.
    const forgotten_rows = 1 << 16;
    /// Squared errors go with the squared distances of rows to centers. Codes that are made anew double them, for those of both
    /// codes add up; copied ones lose nothing, but new rows have centers that are not all made for them.
    const spread_max = 1.5;
    const spread_rounding = 1e-9;

    /// Null where its codes say nothing here: bits are others, or vectors that are stored say more.
    pub fn open(allocator: std.mem.Allocator, warm_start: *const WarmStart, options: *const Options, params: quant.CodeParams, diagnostic: *Diagnostic) Error!?WarmStartCodes {
        if (options.store_vectors or !ascend(warm_start.rows)) return null;
        const opened = try allocator.create(reader.Reader);
        var kept = false;
        defer if (!kept) allocator.destroy(opened);
        opened.* = try .open(allocator, warm_start.path, .{ .links = .on_disk, .codes = false }, diagnostic);
        defer if (!kept) opened.deinit();
        const header = &opened.header;
        if (opened.vectors != null or header.n != warm_start.rows.len or header.dim_in != options.dim or opened.metric != options.metric or
            header.memory_bits != params.memory_bits or header.record_bits != params.record_bits) return null;
        const file = opened.manifest().file(files.file_codes).?; // it was opened
        var mapped = try files.map_checked(allocator, opened.dir, file, diagnostic);
        defer if (!kept) mapped.free();
        const centers: []const f32 = @alignCast(std.mem.bytesAsSlice(f32, mapped.bytes[@intCast(header.centers_offset())..][0..@intCast(header.centers_bytes())]));
        if (!files.all_finite(centers)) return files.bad_file(diagnostic, file.name);
        const walk = try PageWalk.init(allocator, opened);
        kept = true;
        return .{ .allocator = allocator, .opened = opened, .mapped = mapped, .walk = walk, .rows = warm_start.rows, .centers = centers };
    }

    pub fn deinit(self: *WarmStartCodes) void {
        self.walk.deinit();
        self.mapped.free();
        self.opened.deinit();
        self.allocator.destroy(self.opened);
    }

    fn ascend(rows: []const u32) bool {
        var last: ?u32 = null;
        for (rows) |row| {
            if (row == WarmStart.removed) continue;
            if (last != null and row <= last.?) return false;
            last = row;
        }
        return true;
    }

    /// Its centers and others beside them, for the rows of `sample`; null where they are too far from these rows, so that its
    /// codes are made anew around `fresh` ones. Those were made of the sample around the mean `mean`; the rotation is the same.
    fn centers_for(self: *const WarmStartCodes, rotation: *const quant.Rotation, mean: []const f32, fresh: *const quant.Centers, sample: []const f32) error{OutOfMemory}!?quant.Centers {
        const dim = fresh.dim;
        const scratch = try self.allocator.alloc(f32, dim + mean.len + self.centers.len);
        defer self.allocator.free(scratch);
        const shift = scratch[0..dim];
        const between = scratch[dim..][0..mean.len];
        const moved = scratch[dim + mean.len ..];
        for (between, self.opened.mean, mean) |*gap, own, other| gap.* = own - other;
        rotation.apply(between, shift);
        for (moved, self.centers, 0..) |*value, own, i| value.* = own + shift[i % dim];
        const own_count: u32 = @intCast(moved.len / dim);
        var centers = try quant.Centers.train_beside(self.allocator, dim, sample, moved, @max(own_count, fresh.count()));
        const rounding = spread_rounding * @as(f64, quant.kernels().sum_squares(sample.ptr, @intCast(sample.len)));
        if (centers.spread(sample) > spread_max * fresh.spread(sample) + rounding) {
            centers.deinit(self.allocator);
            return null;
        }
        centers.put_back(self.centers, shift);
        return centers;
    }

    /// Copies the codes of those rows of a run that it has, which the thread then leaves as they are. Runs come in order.
    pub fn fill(self: *WarmStartCodes, thread: *EncodeThread, diagnostic: *Diagnostic) Error!void {
        const header = &self.opened.header;
        const tan2_upper = @as(f64, header.tan_upper) * header.tan_upper;
        const tan2_full = @as(f64, header.tan_full) * header.tan_full;
        for (0..thread.count) |i| {
            const vertex = self.vertex_of(thread.first + i) orelse continue;
            if (!self.is_copied) {
                // The row is a code's point already: its error comes on top.
                thread.errors.tan2_upper += tan2_full;
                thread.errors.tan2_full += tan2_full;
                continue;
            }
            const f_upper = try self.copy(vertex, thread.stored[i * thread.stored_bytes ..][0..thread.stored_bytes], diagnostic);
            thread.has_code.set(i);
            if (!(f_upper > 0)) continue;
            thread.errors.tan2_upper += tan2_upper;
            thread.errors.tan2_full += tan2_full;
            thread.errors.norm2_per_f2 += header.norm2_per_f2;
            thread.errors.count += 1;
        }
    }

    fn vertex_of(self: *WarmStartCodes, row: u64) ?u32 {
        while (self.next < self.rows.len and (self.rows[self.next] == WarmStart.removed or self.rows[self.next] < row)) self.next += 1;
        return if (self.next < self.rows.len and self.rows[self.next] == row) self.next else null;
    }

    fn copy(self: *WarmStartCodes, vertex: u32, out: []u8, diagnostic: *Diagnostic) Error!f32 {
        if (self.page == null or !self.page.?.has(vertex)) {
            self.page = null;
            self.walk.seek(self.opened.directory.page_of(vertex));
            self.page = try self.walk.next(diagnostic);
        }
        const view = &self.page.?;
        const header = &self.opened.header;
        const params = self.opened.codes.params;
        const record = vertex - view.first_vertex;
        const whole = self.mapped.bytes;
        const pair = std.mem.readInt(u32, whole[@intCast(header.factors_offset() + 4 * @as(u64, vertex))..][0..4], .little);
        const center = whole[@intCast(header.center_ids_offset() + vertex)];
        if (center >= header.center_count or @max(@as(u16, @truncate(pair)), pair >> 16) > quant.PositiveFloat.largest)
            return files.bad_file(diagnostic, files.file_codes);
        const upper = whole[@intCast(header.codes_offset() + vertex * params.upper_bytes())..][0..params.upper_bytes()];
        const lower = view.lower[record * params.lower_bytes() ..][0..params.lower_bytes()];
        work.copy_row(params, upper, lower, center, &.{ .memory = pair, .record = .{ .offset = view.offsets[record], .ratio = view.ratios[record] } }, out);
        self.forget(vertex);
        return quant.PositiveFloat.decode(@intCast(pair >> 16));
    }

    fn forget(self: *WarmStartCodes, vertex: u32) void {
        if (vertex - self.forgotten < forgotten_rows) return;
        const header = &self.opened.header;
        for ([_]u64{ header.codes_offset(), header.factors_offset(), header.center_ids_offset() }, [_]u64{ header.code_bytes(), 4, 1 }) |begin, each|
            files.forget(self.mapped.bytes[@intCast(begin + each * self.forgotten)..@intCast(begin + each * vertex)]);
        self.forgotten = vertex;
    }
};

// ---- graph and placement ----
//
// The stages of a build in one piece between encoding and writing: the graph over the 8-bit codes, and the placement of its
// vertices on pages. Each goes on from what a killed build kept of it (resume.zig). A build in partitions takes from here
// how one graph is asked for and one placement is made.

fn load_points(builder: *Builder, n: u32, codes: *?quant.BuildCodes, diagnostic: *Diagnostic) Error!*quant.BuildCodes {
    if (codes.* == null) codes.* = builder.work_points.?.take();
    if (codes.* == null) {
        codes.* = try quant.BuildCodes.init(n, builder.params.dim);
        try builder.work_points.?.load(&codes.*.?, 0, 0, n, diagnostic);
    }
    return &codes.*.?;
}

fn make_graph(builder: *Builder, n: u32, codes: *?quant.BuildCodes, diagnostic: *Diagnostic) Error!graph.Graph {
    builder.control.enter(.graph, n);
    var keeper: resume_room.GraphKeeper = .{
        .allocator = builder.allocator,
        .dir = builder.dir,
        .identity = builder.identity(),
        .diagnostic = diagnostic,
        .interval_us = if (builder.options.transient) std.math.maxInt(u64) else @as(u64, builder.options.checkpoint_ms) * std.time.us_per_ms,
        .last_us = base.nowMicros(),
    };
    if (try keeper.load_whole(n, builder.options.degree)) |built| return built;
    if (builder.warm_start) |*warm_start| if (warm_start.has_lists and has_room_for(builder, warm_start)) {
        var built = try link_on(builder, warm_start, n, codes, diagnostic);
        errdefer built.deinit(builder.allocator);
        if (!builder.options.transient) try keeper.save_whole(&built);
        return built;
    };
    var built = link_anew(builder, try load_points(builder, n, codes, diagnostic), graph_options(builder, builder.options.seed), &keeper) catch |err| switch (err) {
        error.NotKept => return keeper.failure,
        else => |other| return graph_error(diagnostic, other),
    };
    errdefer built.deinit(builder.allocator);
    try builder.control.check();
    if (!builder.options.transient) try keeper.save_whole(&built);
    return built;
}

/// The graph of rows by what queries will compare.
fn link_anew(builder: *Builder, points: *const quant.BuildCodes, given: graph.BuildOptions, keeper: *resume_room.GraphKeeper) (graph.Error || error{NotKept})!graph.Graph {
    var options = given;
    options.walks = begin_walks(builder, points);
    defer end_walks(builder);
    if (builder.options.metric != .ip) return graph.build_kept(quant.BuildCodes, builder.allocator, points, options, keeper);
    return graph.build_kept(quant.ProductCodes, builder.allocator, &.of(points), options, keeper);
}

/// Until `end_walks`.
fn begin_walks(builder: *const Builder, points: *const quant.BuildCodes) ?graph.Walks {
    const walker = builder.options.walker orelse return null;
    return walker.begin(walker.context, points, builder.options.metric == .ip);
}

fn end_walks(builder: *const Builder) void {
    if (builder.options.walker) |walker| walker.end(walker.context);
}

fn has_room_for(builder: *const Builder, warm_start: *const WarmStart) bool {
    const limit = builder.options.memory_bytes;
    return limit == 0 or option_room.memory_whole(builder.options, builder.params.dim) + warm_start.memory_bytes(builder.options.degree) <= limit;
}

/// The lists are read before the points: what reading takes is given back by then.
fn link_on(builder: *Builder, warm_start: *const WarmStart, n: u32, codes: *?quant.BuildCodes, diagnostic: *Diagnostic) Error!graph.Graph {
    var initial = try warm_start.begin(builder.allocator, &builder.options, diagnostic);
    defer initial.deinit(builder.allocator);
    try builder.control.check();
    const points = try load_points(builder, n, codes, diagnostic);
    return go_on(builder, points, graph_options(builder, builder.options.seed), &initial) catch |err| graph_error(diagnostic, err);
}

/// The graph of rows that goes on from what has begun.
fn go_on(builder: *Builder, points: *const quant.BuildCodes, options: graph.BuildOptions, initial: *graph.InitialGraph) graph.Error!graph.Graph {
    if (builder.options.metric != .ip) return graph.build_from(quant.BuildCodes, builder.allocator, points, options, initial);
    return graph.build_from(quant.ProductCodes, builder.allocator, &.of(points), options, initial);
}

pub fn graph_options(builder: *Builder, seed: u64) graph.BuildOptions {
    return .{
        .degree = builder.options.degree,
        .list_size = builder.options.build_list_size,
        .alpha = builder.options.alpha,
        .threads = builder.options.threads,
        .gives_way = builder.options.gives_way,
        .seed = seed,
        .progress = &builder.control.done,
        .cancel = &builder.control.canceled,
    };
}

fn make_placement(builder: *Builder, built: *const graph.Graph, codes: *?quant.BuildCodes, diagnostic: *Diagnostic) Error!resume_room.Placed {
    const allocator = builder.allocator;
    builder.control.enter(.place, built.n);
    if (try resume_room.load_placed(allocator, builder.dir, builder.identity(), built.n)) |placed| return placed;
    const points = try load_points(builder, built.n, codes, diagnostic);
    var placement = try place_whole(builder, built, points, diagnostic);
    errdefer placement.deinit(allocator);
    const tau = try graph.affinity_threshold(quant.BuildCodes, allocator, points, built.n, builder.options.affinity_percent, builder.options.seed);
    const colors = try graph.color(quant.BuildCodes, allocator, points, &placement, tau);
    errdefer allocator.free(colors);
    const placed: resume_room.Placed = .{ .placement = placement, .colors = colors };
    if (!builder.options.transient) try resume_room.save_placed(allocator, builder.dir, builder.identity(), &placed, diagnostic);
    return placed;
}

/// A page is filled by what its records are thought to take. Lists are only known after placement, so the first
/// sizes come from experience, and a second placement knows better, unless one is enough (`places_once`). Where a former
/// index was placed, its order tells them, and no first placement is made.
fn place_whole(builder: *Builder, built: *const graph.Graph, points: *const quant.BuildCodes, diagnostic: *Diagnostic) Error!graph.Placement {
    const sizes = try base.alloc_untouched(builder.allocator, u16, built.n);
    defer base.free_untouched(builder.allocator, sizes);
    for (sizes, built.degrees) |*size, degree| size.* = size_guess(builder, degree);
    const once = builder.options.places_once;
    if (sizes_vary(builder) and !once) {
        builder.control.enter(.place, built.n);
        const order = try draft_order(builder, built, points, sizes, diagnostic);
        defer base.free_untouched(builder.allocator, order);
        try writer.record_sizes(builder.allocator, .{ .graph = built }, built.degree_max, order, builder.page_geometry(), sizes, diagnostic);
    }
    builder.control.enter(.place, built.n);
    return place_points(builder, built, points, sizes, once, diagnostic);
}

fn draft_order(builder: *Builder, built: *const graph.Graph, points: *const quant.BuildCodes, sizes: []const u16, diagnostic: *Diagnostic) Error![]u32 {
    if (builder.warm_start) |*warm_start| return warm_start.order(builder.allocator, built.n, .{ .graph = built }, diagnostic);
    const first = try place_points(builder, built, points, sizes, true, diagnostic);
    base.free_untouched(builder.allocator, first.page_first);
    return first.order;
}

/// Whether records differ in what they take of a page. Of a page with a table each takes the same share, whatever its list has.
fn sizes_vary(builder: *const Builder) bool {
    return builder.options.page_links and !builder.options.page_codes;
}

/// Bytes of a record with so many neighbors in a page, by experience; exact if sizes do not vary.
fn size_guess(builder: *const Builder, degree: usize) u16 {
    const fixed = builder.page_geometry().record_bytes();
    if (!sizes_vary(builder)) return @intCast(fixed);
    const bits_per_edge = @max(6, 12.9 + 0.7 * (@log2(@as(f64, @floatFromInt(builder.options.n)) + 1) - @log2(1e6)));
    const list_bytes = 1.5 + bits_per_edge * @as(f64, @floatFromInt(degree)) / 8;
    return @intCast(fixed + @as(u32, @intFromFloat(@ceil(list_bytes))));
}

fn place_points(builder: *Builder, built: *const graph.Graph, points: *const quant.BuildCodes, sizes: []const u16, draft: bool, diagnostic: *Diagnostic) Error!graph.Placement {
    const geometry = builder.page_geometry();
    const records = builder.options.page_records(geometry);
    const options: graph.PlaceOptions = .{
        .page_bytes_budget = if (records > 0) records * geometry.record_bytes() else geometry.page_size - layout.page.header_bytes,
        .record_bytes = sizes,
        .draft = draft,
        .threads = builder.options.threads,
        .gives_way = builder.options.gives_way,
        .progress = &builder.control.done,
        .cancel = &builder.control.canceled,
    };
    const placed = if (builder.options.metric == .ip)
        graph.place(quant.DirectionCodes, builder.allocator, &.of(points), built, options)
    else
        graph.place(quant.BuildCodes, builder.allocator, points, built, options);
    return placed catch |err| graph_error(diagnostic, err);
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

// ---- partitions ----
//
// A build whose codes and graph do not fit its memory. Each partition (clusters.zig) gets a graph of its own, one after
// another. The lists that a row has where it is at home and where it is a guest become one, on disk; what can then not be
// reached from the entry is attached. Placement works on one partition's homes at a time, so pages never span partitions.

pub const Partitions = struct {
    allocator: std.mem.Allocator,
    builder: *Builder,
    diagnostic: *Diagnostic,
    n: u32,
    count: u32,
    clusters: Clusters,
    /// By row.
    lists: ListFile,

    /// Builds and joins the graphs, or goes on where a killed build was.
    pub fn build(builder: *Builder, diagnostic: *Diagnostic) Error!Partitions {
        const allocator = builder.allocator;
        const n: u32 = @intCast(builder.options.n);
        const count = builder.plan.partitions;
        var own = try clusters.assign(allocator, &builder.work_points.?, n, builder.plan, builder.options.seed, branches_of(builder.options.degree), &builder.control, diagnostic);
        errdefer own.deinit(allocator);
        var lists = try ListFile.create(allocator, builder.dir, work.lists_name, n, builder.options.degree, diagnostic);
        errdefer lists.deinit();
        var self: Partitions = .{
            .allocator = allocator,
            .builder = builder,
            .diagnostic = diagnostic,
            .n = n,
            .count = count,
            .clusters = own,
            .lists = lists,
        };
        {
            const offsets = try allocator.alloc(u64, count + 1);
            defer allocator.free(offsets);
            var parts = try self.build_parts(offsets);
            defer parts.deinit();
            try self.merge(&parts, offsets);
        }
        self.clusters.forget_guests(allocator);
        try self.connect();
        return self;
    }

    pub fn deinit(self: *Partitions) void {
        self.clusters.deinit(self.allocator);
        self.lists.deinit();
    }

    // ---- graphs

    fn members(self: *const Partitions, partition: usize, guests_too: bool) Error![]u32 {
        var rows: std.ArrayList(u32) = .empty;
        errdefer rows.deinit(self.allocator);
        var count: usize = 0;
        for (0..2) |turn| {
            for (self.clusters.homes, 0..) |home, row| {
                if (home != partition and !(guests_too and self.clusters.guests[row] == partition)) continue;
                if (turn == 0) count += 1 else rows.appendAssumeCapacity(@intCast(row));
            }
            if (turn == 0) try rows.ensureTotalCapacityPrecise(self.allocator, count);
        }
        return rows.toOwnedSlice(self.allocator);
    }

    fn load(self: *const Partitions, rows: []const u32) Error!quant.BuildCodes {
        var codes = try quant.BuildCodes.init(@intCast(rows.len), self.builder.params.dim);
        errdefer codes.deinit();
        try self.builder.work_points.?.load_rows(&codes, rows, self.diagnostic);
        return codes;
    }

    fn build_parts(self: *Partitions, offsets: []u64) Error!work.GrowingFile {
        const builder = self.builder;
        var places: u64 = self.n;
        for (self.clusters.guests) |guest| places += @intFromBool(guest != clusters.nowhere);
        builder.control.enter(.graph, places);
        var keeper: resume_room.PartsKeeper = .{ .allocator = self.allocator, .dir = builder.dir, .identity = builder.identity(), .diagnostic = self.diagnostic };
        @memset(offsets, 0);
        var done: u32 = 0;
        var parts = if (try keeper.restore(work.parts_name, offsets, &done)) |found| found else try work.GrowingFile.create(self.allocator, builder.dir, work.parts_name, self.diagnostic);
        errdefer parts.deinit();
        if (done > 0) {
            var inserted: u64 = 0;
            for (self.clusters.homes, self.clusters.guests) |home, guest| inserted += @as(u64, @intFromBool(home < done)) + @intFromBool(guest < done);
            builder.control.done.store(inserted, .monotonic);
        }
        var warm_start: ?Partly = if (builder.plan.goes_on) try .init(&builder.warm_start.?, self.allocator, &builder.options, self.diagnostic) else null;
        defer if (warm_start) |*lists| lists.deinit();
        var saved_us = base.nowMicros();
        while (done < self.count) {
            try builder.control.check();
            try self.build_part(done, if (warm_start) |*lists| lists else null, &parts);
            done += 1;
            offsets[done] = parts.bytes + parts.used;
            const due = base.nowMicros() - saved_us >= @as(u64, builder.options.checkpoint_ms) * std.time.us_per_ms;
            if (builder.options.transient) {
                if (done == self.count) try parts.flush(self.diagnostic);
            } else if (due or done == self.count) {
                try keeper.save(&parts, offsets[0 .. done + 1], builder.options.n * done / self.count);
                saved_us = base.nowMicros();
            }
        }
        return parts;
    }

    fn build_part(self: *Partitions, partition: u32, warm_start: ?*Partly, parts: *work.GrowingFile) Error!void {
        const builder = self.builder;
        const rows = try self.members(partition, true);
        defer self.allocator.free(rows);
        if (rows.len == 0) return;
        var initial: ?graph.InitialGraph = if (warm_start) |lists| try lists.begin(rows, builder.plan.removed_max, builder.options.degree, self.diagnostic) else null;
        defer if (initial) |*lists| lists.deinit(self.allocator);
        var codes = try self.load(rows);
        defer codes.deinit();
        var options = graph_options(builder, builder.options.seed +% partition);
        // Reachable from the hub, to which the tree of hubs leads; a partition of guests alone has none.
        if (std.sort.binarySearch(u32, rows, self.clusters.hubs[partition], compare)) |hub| options.entry = @intCast(hub);
        if (initial == null) options.walks = begin_walks(builder, &codes);
        defer if (initial == null) end_walks(builder);
        const linked = if (initial) |*lists|
            go_on(builder, &codes, options, lists)
        else if (builder.options.metric == .ip)
            graph.build(quant.ProductCodes, self.allocator, &.of(&codes), options)
        else
            graph.build(quant.BuildCodes, self.allocator, &codes, options);
        var built = linked catch |err| return graph_error(self.diagnostic, err);
        defer built.deinit(self.allocator);
        var bytes: [work.list_bytes_max]u8 = undefined;
        for (0..built.n) |member| {
            const list = built.list(@intCast(member));
            for (list) |*id| id.* = rows[id.*];
            try parts.append(work.put_list(list, self.lists.neighbor_bytes, &bytes), self.diagnostic);
        }
    }

    fn compare(wanted: u32, row: u32) std.math.Order {
        return std.math.order(wanted, row);
    }

    // ---- one graph of them all

    /// Reads the lists of one partition, one after another.
    const Cursor = struct {
        at: u64,
        end: u64,
        buffer: []u8,
        from: usize = 0,
        to: usize = 0,
        list: [255]u32 = undefined,

        /// Valid until the next call of the same cursor.
        fn next(self: *Cursor, parts: *const work.GrowingFile, neighbor_bytes: u8, diagnostic: *Diagnostic) Error![]const u32 {
            if (self.to - self.from < work.list_bytes_max and self.at < self.end) {
                const kept = self.to - self.from;
                std.mem.copyForwards(u8, self.buffer[0..kept], self.buffer[self.from..self.to]);
                const some: usize = @intCast(@min(self.buffer.len - kept, self.end - self.at));
                try parts.read_at(self.buffer[kept..][0..some], self.at, diagnostic);
                self.at += some;
                self.from = 0;
                self.to = kept + some;
            }
            const list = work.take_list(self.buffer[self.from..self.to], neighbor_bytes, &self.list) orelse {
                diagnostic.in_file(parts.name, "{s} was changed while it was in use", .{parts.name});
                return error.Io;
            };
            self.from += 1 + list.len * neighbor_bytes;
            return list;
        }
    };

    /// Buffers of all cursors together.
    const merge_bytes = 4 << 20;

    fn merge(self: *Partitions, parts: *const work.GrowingFile, offsets: []const u64) Error!void {
        const degree = self.builder.options.degree;
        const each = @max(work.list_bytes_max, merge_bytes / self.count);
        const memory = try base.alloc_untouched(self.allocator, u8, @as(usize, each) * self.count);
        defer base.free_untouched(self.allocator, memory);
        const cursors = try base.alloc_untouched(self.allocator, Cursor, self.count);
        defer base.free_untouched(self.allocator, cursors);
        for (cursors, 0..) |*cursor, i| cursor.* = .{ .at = offsets[i], .end = offsets[i + 1], .buffer = memory[i * each ..][0..each] };
        const tree = try self.hub_tree();
        defer self.allocator.free(tree);
        var branch: usize = 0;
        for (self.clusters.homes, self.clusters.guests, 0..) |home, guest, row| {
            if (row % 4096 == 0) try self.builder.control.check();
            var merged: Merged = .{ .row = @intCast(row), .degree = degree };
            while (branch < tree.len and tree[branch].parent == row) : (branch += 1) merged.add(tree[branch].child);
            const own = try cursors[home].next(parts, self.lists.neighbor_bytes, self.diagnostic);
            const other: []const u32 = if (guest == clusters.nowhere) &.{} else try cursors[guest].next(parts, self.lists.neighbor_bytes, self.diagnostic);
            merged.interleave(own, other);
            try self.lists.append(merged.ids[0..merged.len], self.diagnostic);
        }
        try self.lists.flush(self.diagnostic);
    }

    const Merged = struct {
        row: u32,
        degree: u32,
        len: u32 = 0,
        ids: [256]u32 = undefined,

        fn add(self: *Merged, id: u32) void {
            if (self.len == self.degree or id == self.row or std.mem.indexOfScalar(u32, self.ids[0..self.len], id) != null) return;
            self.ids[self.len] = id;
            self.len += 1;
        }

        /// Both lists begin with what serves best.
        fn interleave(self: *Merged, own: []const u32, other: []const u32) void {
            for (0..@max(own.len, other.len)) |i| {
                if (i < own.len) self.add(own[i]);
                if (i < other.len) self.add(other[i]);
            }
        }
    };

    const Edge = struct {
        parent: u32,
        child: u32,

        fn less(_: void, a: Edge, b: Edge) bool {
            return if (a.parent != b.parent) a.parent < b.parent else a.child < b.child;
        }
    };

    /// The edges of the tree of hubs, so that partitions which share no row can be reached; by parents.
    fn hub_tree(self: *const Partitions) error{OutOfMemory}![]Edge {
        var edges: std.ArrayList(Edge) = try .initCapacity(self.allocator, self.count);
        errdefer edges.deinit(self.allocator);
        for (self.clusters.hubs, self.clusters.parents) |child, first_parent| {
            if (child == clusters.no_row) continue;
            var parent = first_parent;
            while (parent != clusters.nowhere and self.clusters.hubs[parent] == clusters.no_row) parent = self.clusters.parents[parent];
            edges.appendAssumeCapacity(.{ .parent = if (parent == clusters.nowhere) self.clusters.entry else self.clusters.hubs[parent], .child = child });
        }
        std.sort.pdq(Edge, edges.items, {}, Edge.less);
        return edges.toOwnedSlice(self.allocator);
    }

    /// A row may stand in the tree twice, as the entry and as a hub; half a list at most leads down the tree.
    fn branches_of(degree: u32) u32 {
        return @max(1, degree / 4);
    }

    // ---- every row reachable

    /// As `graph.connect`, without distances: an unreachable row's own neighbors are near it, so one of them becomes its
    /// parent; where none of them can be reached either, what lies below its partition's hub or else the entry.
    fn connect(self: *Partitions) Error!void {
        var reached = try base.BitSet.init(self.allocator, self.n);
        defer reached.deinit(self.allocator);
        const stack = try base.alloc_untouched(self.allocator, u32, self.n);
        defer base.free_untouched(self.allocator, stack);
        try self.spread(&reached, stack, self.clusters.entry);
        for (0..self.n) |v| {
            const row: u32 = @intCast(v);
            if (reached.contains(row)) continue;
            try self.attach(row, try self.parent_of(row, &reached));
            try self.spread(&reached, stack, row);
        }
    }

    fn spread(self: *Partitions, reached: *base.BitSet, stack: []u32, start: u32) Error!void {
        reached.insert(start);
        stack[0] = start;
        var height: usize = 1;
        var steps: u32 = 0;
        while (height > 0) {
            steps +%= 1;
            if (steps % 4096 == 0) try self.builder.control.check();
            height -= 1;
            for (try self.lists.read(stack[height], self.diagnostic)) |neighbor| {
                if (!reached.insert_new(neighbor)) continue;
                stack[height] = neighbor;
                height += 1;
            }
        }
    }

    fn parent_of(self: *Partitions, row: u32, reached: *const base.BitSet) Error!u32 {
        const degree = self.builder.options.degree;
        var prng = base.Prng.init(row);
        var buffer: [256]u32 = undefined;
        const list = try self.copy(row, &buffer);
        var count: usize = 0;
        for (list) |neighbor| {
            if (!reached.contains(neighbor)) continue;
            if ((try self.lists.read(neighbor, self.diagnostic)).len < degree) return neighbor;
            list[count] = neighbor;
            count += 1;
        }
        // Any of them, for copies of one vector all have the same neighbors.
        if (count > 0) return list[@intCast(prng.below(count))];
        const hub = self.clusters.hubs[self.clusters.homes[row]];
        const top = if (reached.contains(hub)) hub else self.clusters.entry;
        var parent = top;
        for (0..64) |_| {
            const below = try self.lists.read(parent, self.diagnostic);
            if (below.len < degree) return parent;
            parent = below[@intCast(prng.below(below.len))];
        }
        return top;
    }

    fn copy(self: *Partitions, row: u32, buffer: *[256]u32) Error![]u32 {
        const list = try self.lists.read(row, self.diagnostic);
        @memcpy(buffer[0..list.len], list);
        return buffer[0..list.len];
    }

    /// A full parent gives up its last neighbor, to which the newcomer then leads.
    fn attach(self: *Partitions, row: u32, parent: u32) Error!void {
        const orphan = try self.insert(parent, row) orelse return;
        var buffer: [256]u32 = undefined;
        if (std.mem.indexOfScalar(u32, try self.copy(row, &buffer), orphan) == null) _ = try self.insert(row, orphan);
    }

    /// Puts a neighbor into the middle of a list: behind what leads down the tree, and before what memory may not keep.
    /// Returns the neighbor that had to leave for it.
    fn insert(self: *Partitions, row: u32, newcomer: u32) Error!?u32 {
        const degree = self.builder.options.degree;
        var buffer: [256]u32 = undefined;
        const list = try self.copy(row, &buffer);
        const given_up: ?u32 = if (list.len == degree) list[degree - 1] else null;
        const kept = @min(list.len, degree - 1);
        const at = @min(kept, degree / 2);
        std.mem.copyBackwards(u32, buffer[at + 1 .. kept + 1], buffer[at..kept]);
        buffer[at] = newcomer;
        try self.lists.write(row, buffer[0 .. kept + 1], self.diagnostic);
        return given_up;
    }

    // ---- pages

    /// One partition's homes, and its graph as far as it stays among them.
    const Loaded = struct {
        rows: []u32,
        codes: quant.BuildCodes,
        graph: graph.Graph,
        sizes: []u16,

        fn deinit(self: *Loaded, allocator: std.mem.Allocator) void {
            allocator.free(self.rows);
            self.codes.deinit();
            self.graph.deinit(allocator);
            base.free_untouched(allocator, self.sizes);
        }
    };

    /// `ranks`: where a row stands among the homes of its partition. `sizes`: of all records, by row, once they are known.
    fn load_homes(self: *Partitions, partition: usize, ranks: []const u32, sizes: ?[]const u16) Error!?Loaded {
        const allocator = self.allocator;
        const degree = self.builder.options.degree;
        const rows = try self.members(partition, false);
        errdefer allocator.free(rows);
        if (rows.len == 0) {
            allocator.free(rows);
            return null;
        }
        var codes = try self.load(rows);
        errdefer codes.deinit();
        var local: graph.Graph = .{
            .n = @intCast(rows.len),
            .degree_max = degree,
            .neighbors = try base.alloc_untouched(allocator, u32, rows.len * degree),
            .degrees = &.{},
            .entry = 0,
        };
        errdefer local.deinit(allocator);
        local.degrees = try base.alloc_untouched(allocator, u16, rows.len);
        const own_sizes = try base.alloc_untouched(allocator, u16, rows.len);
        errdefer base.free_untouched(allocator, own_sizes);
        const homes = self.clusters.homes;
        for (rows, local.degrees, own_sizes, 0..) |row, *local_degree, *size, member| {
            const list = try self.lists.read(row, self.diagnostic);
            size.* = if (sizes) |known| known[row] else size_guess(self.builder, list.len);
            const own_list = local.row(@intCast(member));
            local_degree.* = 0;
            for (list) |neighbor| if (homes[neighbor] == partition) {
                own_list[local_degree.*] = ranks[neighbor];
                local_degree.* += 1;
            };
        }
        local.entry = ranks[self.clusters.hubs[partition]];
        return .{ .rows = rows, .codes = codes, .graph = local, .sizes = own_sizes };
    }

    /// The mean of all partitions.
    fn affinity_threshold(self: *Partitions) Error!f32 {
        const options = &self.builder.options;
        var sum: f64 = 0;
        for (0..self.count) |partition| {
            const rows = try self.members(partition, false);
            defer self.allocator.free(rows);
            if (rows.len == 0) continue;
            var codes = try self.load(rows);
            defer codes.deinit();
            const own = try graph.affinity_threshold(quant.BuildCodes, self.allocator, &codes, @intCast(rows.len), options.affinity_percent, options.seed);
            sum += own * @as(f64, @floatFromInt(rows.len)) / @as(f64, @floatFromInt(self.n));
        }
        return @floatCast(sum);
    }

    /// All partitions' pages one after another, as `Builder.place` makes those of one graph. Where a former index was placed, its
    /// order tells the sizes of records, as in `place_whole`.
    pub fn place(self: *Partitions) Error!resume_room.Placed {
        const allocator = self.allocator;
        const ranks = try base.alloc_untouched(allocator, u32, self.n);
        defer base.free_untouched(allocator, ranks);
        {
            const counts = try base.alloc_untouched(allocator, u32, self.count);
            defer base.free_untouched(allocator, counts);
            @memset(counts, 0);
            for (self.clusters.homes, ranks) |home, *rank| {
                rank.* = counts[home];
                counts[home] += 1;
            }
        }
        const threshold = try self.affinity_threshold();
        const places_once = self.builder.options.places_once;
        if (places_once or !sizes_vary(self.builder)) return self.place_with(ranks, null, places_once, threshold);
        const sizes = try base.alloc_untouched(allocator, u16, self.n);
        defer base.free_untouched(allocator, sizes);
        {
            const order = try self.draft_order(ranks);
            defer base.free_untouched(allocator, order);
            try writer.record_sizes(allocator, .{ .rows = &self.lists }, self.builder.options.degree, order, self.builder.page_geometry(), sizes, self.diagnostic);
        }
        return self.place_with(ranks, sizes, false, threshold);
    }

    fn draft_order(self: *Partitions, ranks: []const u32) Error![]u32 {
        if (self.builder.plan.goes_on) return self.builder.warm_start.?.order(self.allocator, self.n, .{ .rows = &self.lists }, self.diagnostic);
        const draft = try self.place_with(ranks, null, true, null);
        base.free_untouched(self.allocator, draft.placement.page_first);
        base.free_untouched(self.allocator, draft.colors);
        return draft.placement.order;
    }

    /// Without `sizes` they come from experience. In a `draft` no vertices change places. Records get colors with a `threshold`,
    /// within which vectors are affine.
    fn place_with(self: *Partitions, ranks: []const u32, sizes: ?[]const u16, draft: bool, threshold: ?f32) Error!resume_room.Placed {
        const allocator = self.allocator;
        self.builder.control.enter(.place, self.n);
        var order: std.ArrayList(u32) = try .initCapacity(allocator, self.n);
        errdefer order.deinit(allocator);
        var page_first: std.ArrayList(u32) = .empty;
        errdefer page_first.deinit(allocator);
        const colors = try base.alloc_untouched(allocator, u8, if (threshold == null) 0 else self.n);
        errdefer base.free_untouched(allocator, colors);
        for (0..self.count) |partition| {
            var loaded = try self.load_homes(partition, ranks, sizes) orelse continue;
            defer loaded.deinit(allocator);
            var placement = try place_points(self.builder, &loaded.graph, &loaded.codes, loaded.sizes, draft, self.diagnostic);
            defer placement.deinit(allocator);
            const first: u32 = @intCast(order.items.len);
            if (threshold) |within| {
                const own = try graph.color(quant.BuildCodes, allocator, &loaded.codes, &placement, within);
                defer allocator.free(own);
                @memcpy(colors[first..][0..own.len], own);
            }
            for (placement.order) |member| order.appendAssumeCapacity(loaded.rows[member]);
            try page_first.ensureUnusedCapacity(allocator, placement.page_first.len);
            for (placement.page_first) |page| page_first.appendAssumeCapacity(first + page);
        }
        const own_order = try order.toOwnedSlice(allocator);
        errdefer allocator.free(own_order);
        return .{ .placement = .{ .order = own_order, .page_first = try page_first.toOwnedSlice(allocator) }, .colors = colors };
    }

    /// The lists once more, in placement order, as the writer goes through them again and again.
    pub fn placed_lists(self: *Partitions, order: []const u32) Error!ListFile {
        var placed = try ListFile.create(self.allocator, self.builder.dir, work.placed_lists_name, self.n, self.builder.options.degree, self.diagnostic);
        errdefer placed.deinit();
        for (order, 0..) |row, vertex| {
            if (vertex % 4096 == 0) try self.builder.control.check();
            try placed.append(try self.lists.read(row, self.diagnostic), self.diagnostic);
        }
        try placed.flush(self.diagnostic);
        return placed;
    }
};
