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
const graph_stage = @import("graph_stage.zig");
const resume_room = @import("resume.zig");
const robust = @import("robust.zig");
const space = @import("space.zig");
const work = @import("work.zig");
const writer = @import("writer.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;
const Control = @import("control.zig").Control;
const Stage = @import("control.zig").Stage;
const ListFile = @import("list_file.zig").ListFile;
const Partitions = @import("partitions.zig").Partitions;
const EncodeThread = @import("encode_thread.zig").EncodeThread;
const Former = @import("former.zig").Former;
const FormerCodes = @import("former_codes.zig").FormerCodes;
const run_rows = @import("encode_thread.zig").run_rows;
const option_room = @import("options.zig");
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
    /// What was done stays when the build is closed.
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

    /// Of the rows that `scan` saw, each after the other.
    content: u64 = 0,
    added: u64 = 0,
    checkpoint_us: u64,
    work_codes: ?work.CodesFile = null,
    work_points: ?work.PointsFile = null,
    work_vectors: ?work.GrowingFile = null,
    encoders: []EncodeThread,
    order: ?[]u32 = null,
    /// An index whose graph this one goes on from.
    former: ?Former = null,
    /// Its codes, where they tell of rows what nothing else does.
    former_codes: ?FormerCodes = null,
    /// Which index that is.
    coded_like: u64 = 0,
    written: ?writer.Written = null,
    committed: bool = false,

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
        const sample = try base.alloc_untouched(allocator, f32, @as(usize, quant.Centers.sample_for(options.n, params.dim)) * params.dim);
        errdefer base.free_untouched(allocator, sample);
        const encoders = try allocator.alloc(EncodeThread, @max(1, options.threads));
        errdefer allocator.free(encoders);
        var made: usize = 0;
        errdefer for (encoders[0..made]) |*encoder| encoder.deinit(allocator);
        for (encoders) |*encoder| {
            encoder.* = try EncodeThread.init(allocator, options.dim, params);
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
        // Only when empty: files that somebody else put there are not ours to remove.
        if (removed and !self.committed and self.made_folder) std.fs.cwd().deleteDir(self.path) catch {};
        for (self.encoders) |*encoder| encoder.deinit(allocator);
        allocator.free(self.encoders);
        if (self.order) |order| allocator.free(order);
        self.close_former_codes();
        if (self.former) |*former| former.deinit(allocator);
        if (self.written) |*written| written.deinit(allocator);
        base.free_untouched(allocator, self.sample);
        if (self.centers) |*centers| centers.deinit(allocator);
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
        const former = try Former.init(self.allocator, path, rows, &self.options, diagnostic);
        self.close_former_codes();
        if (self.former) |*before| before.deinit(self.allocator);
        self.former = former;
        self.former_codes = try FormerCodes.open(self.allocator, &self.former.?, &self.options, self.params, diagnostic);
        if (self.former_codes) |*codes| {
            const rotation = try quant.Rotation.init(self.allocator, self.options.dim, codes.opened.header.rotation_seed);
            self.rotation.deinit(self.allocator);
            self.rotation = rotation;
            self.rotation_seed = codes.opened.header.rotation_seed;
            self.coded_like = base.checksum(codes.opened.manifest().uuid);
        }
        if (self.plan.partitions == 0) return;
        self.plan.goes_on = false;
        const beside = former.beside(self.options.degree) orelse return;
        if (option_room.plan_beside(self.options, self.params.dim, beside)) |plan| self.plan = plan;
    }

    fn close_former_codes(self: *Builder) void {
        if (self.former_codes) |*codes| codes.deinit();
        self.former_codes = null;
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
        if (self.options.metric == .l2) self.remote_norm2 = try robust.remote_norm2(self.allocator, self.sample[0 .. self.sampled * dim], dim);
        try robust.pull_in(self.allocator, self.sample[0 .. self.sampled * dim], dim);
        self.centers = try quant.Centers.train(self.allocator, dim, self.sample[0 .. self.sampled * dim], quant.Centers.count_for(self.options.n));
        if (self.former_codes) |*codes| if (try codes.centers_for(&self.rotation, self.mean, &self.centers.?, self.sample[0 .. self.sampled * dim])) |centers| {
            self.centers.?.deinit(self.allocator);
            self.centers = centers;
            @memcpy(self.mean, codes.opened.mean);
            self.remote_norm2 = @max(self.remote_norm2, codes.opened.header.remote_norm2);
            codes.is_copied = true;
        };
        base.free_untouched(self.allocator, self.sample);
        self.sample = &.{};
    }

    /// `row` as codes are made of it.
    pub fn to_code_space(self: *const Builder, row: []f32, rotated: []f32) void {
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
            // rows has another name: shards of a collection are told apart by it.
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
        if (self.options.metric != .ip) try robust.mean(self.allocator, drawn, self.params.dim, self.mean);
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
        return base.checksum(std.mem.asBytes(&[_]u64{ resume_room.version, layout.format_version, self.options.identity(), self.content, self.coded_like }));
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
        self.work_codes = .init(codes, self.params);
        self.work_codes.?.errors = encoded.errors;
        self.work_points = .init(points, self.params.dim);
        return true;
    }

    fn begin_encoding(self: *Builder, diagnostic: *Diagnostic) Error!void {
        const n: u32 = @intCast(self.options.n);
        const row_bytes = work.row_bytes_of(self.params);
        const former_bytes = if (self.former) |*former| former.memory_bytes(self.options.degree) + former.codes_bytes(self.params) else 0;
        const held = option_room.held(self.options, self.plan, self.params, row_bytes, former_bytes);
        self.work_codes = .init(try self.work_file(work.codes_name, held.codes, self.options.n * row_bytes, diagnostic), self.params);
        self.work_points = if (held.points) try work.PointsFile.hold(self.allocator, n, self.params.dim) else .init(try self.work_file(work.points_name, false, 0, diagnostic), self.params.dim);
        const vector_bytes = self.options.dim * self.options.dtype.bytes();
        if (self.options.store_vectors) self.work_vectors = try self.work_file(work.vectors_name, held.vectors, self.options.n * vector_bytes, diagnostic);
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
                if (self.former_codes) |*codes| try codes.fill(encoder, diagnostic);
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
        self.close_former_codes();
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
        var built = try graph_stage.make_graph(self, n, &codes, diagnostic);
        defer built.deinit(allocator);
        var placed = try graph_stage.make_placement(self, &built, self.page_geometry().page_size, &codes, diagnostic);
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
        var placed = found orelse try partitions.place(self.page_geometry().page_size);
        errdefer placed.deinit(allocator);
        if (found == null and !self.options.transient) try resume_room.save_placed(allocator, self.dir, self.identity(), &placed, diagnostic);
        const lists = try partitions.placed_lists(placed.placement.order);
        return .{ .placed = placed, .lists = lists, .entry_row = partitions.clusters.entry };
    }

    pub fn page_geometry(self: *const Builder) layout.page.Geometry {
        return self.options.page_geometry(self.params, self.salt);
    }

    fn write_index(self: *Builder, neighbors: writer.Neighbors, entry_row: u32, placed: *const resume_room.Placed, diagnostic: *Diagnostic) Error!void {
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
            .header = .{
                .format_version = layout.format_version_of(self.options.page_codes),
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
        self.order = try self.allocator.dupe(u32, placed.placement.order);
    }

    pub const commit = @import("commit.zig").commit;
};

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
