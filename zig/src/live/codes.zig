//! Codes of the delta's rows, in memory: a search estimates them side by side, and measures only rows that may be among the nearest.
//!
//! Rows are coded a chunk at a time, around the mean of the chunk, so an estimate errs little wherever the chunk lies. All that a
//! search reads of a chunk is written before `coded` counts its rows, and never changes: readers need no lock. The newest rows
//! wait until a chunk is full, and until then searches measure them.
//!
//! Chunks never move, and so do their places in tables: readers hold no lock while the delta grows.
const std = @import("std");
const base = @import("base");
const index = @import("index");
const quant = @import("quant");
const scan = @import("scan.zig");
const BitSet = base.BitSet;
const blocks = quant.blocks;
const space = index.space;

/// Rows that are coded together.
pub const chunk_rows = 256;
const chunk_blocks = chunk_rows / blocks.rows;
const chunk_words = chunk_rows / 64;
const bits = 4;
/// No estimate is farther off, as far as anybody notices: a row beyond is not measured.
const deviations = 4;
/// Of a chunk in which so few rows pass, all of these are measured.
const measured_most = 32;
const rotation_seed = 0x64656c7461; // "delta": codes are never written
/// Squares of longer vectors leave float32 in an estimate.
const norm2_most = 1e30;
/// The share of squared lengths that float32 loses in an estimate, at most.
const lost_share = 64 * std.math.floatEps(f32);

/// Twice as many chunks in each table as in the one before.
const tables_max = 25;

fn params_of(dim: u32) quant.CodeParams {
    return .{ .dim = quant.dim_code_of(dim), .memory_bits = bits, .record_bits = 0 };
}

fn metric_of(shape: scan.Shape) space.Metric {
    return switch (shape.metric) {
        .l2 => .l2,
        .ip => .ip,
        .cosine => .cosine,
    };
}

/// Bytes of a row.
pub fn row_bytes(dim: u32) usize {
    const params = params_of(dim);
    const of_chunk = chunk_blocks * blocks.block_bytes(params.dim, bits) + @sizeOf(Chunk) + @sizeOf(f32) * params.dim;
    return (of_chunk + chunk_rows - 1) / chunk_rows;
}

const Chunk = struct {
    vectors: [chunk_rows][*]const u8,
    factors: [chunk_rows]u32,
    /// Empty until the chunk is coded; empty for good where a row is too long for estimates.
    codes: []align(64) u8,
    center: []f32,
    errors: blocks.Errors,
    /// |c|² and the largest |o|².
    norm2: f32,
};

/// Bytes that the codes of a chunk take beside its place.
pub fn code_bytes(codes: *const Codes, number: u32) usize {
    const one = codes.chunk(number);
    return one.codes.len + std.mem.sliceAsBytes(one.center).len;
}

/// All rows of a chunk have its center.
const centers: [chunk_rows]u8 = @splat(0);

/// The place of codes: rows less a mean, rotated.
const Space = struct {
    rotation: quant.Rotation,
    mean: []f32,
    /// The center that a query is prepared with; that of each chunk follows.
    origin: []f32,
};

pub const Codes = struct {
    tables: [tables_max]?[*]*Chunk = @splat(null),
    chunks: u32 = 0,
    /// One thread codes at a time.
    coder: std.Thread.Mutex = .{},
    /// Rows below are coded; whole chunks.
    coded: std.atomic.Value(u32) = .init(0),
    /// Made with the first chunk.
    space: ?Space = null,

    pub fn deinit(self: *Codes, allocator: std.mem.Allocator) void {
        for (0..self.chunks) |number| {
            const one = self.chunk(@intCast(number));
            allocator.free(one.codes);
            allocator.free(one.center);
            allocator.destroy(one);
        }
        for (self.tables, 0..) |table, t| if (table) |some| allocator.free(some[0 .. @as(usize, 1) << @intCast(t)]);
        if (self.space) |*own| {
            own.rotation.deinit(allocator);
            allocator.free(own.mean);
            allocator.free(own.origin);
        }
        self.* = undefined;
    }

    inline fn chunk(self: *const Codes, number: u32) *Chunk {
        const table = 31 - @clz(number + 1);
        return self.tables[table].?[number + 1 - (@as(u32, 1) << @intCast(table))];
    }

    /// Number of rows that have room.
    pub fn reserve(self: *Codes, allocator: std.mem.Allocator, rows: u32) error{OutOfMemory}!void {
        while (@as(u64, self.chunks) * chunk_rows < rows) {
            const table = 31 - @clz(self.chunks + 1);
            const size = @as(u32, 1) << @intCast(table);
            if (self.tables[table] == null) self.tables[table] = (try allocator.alloc(*Chunk, size)).ptr;
            const made = try allocator.create(Chunk);
            made.codes = &.{};
            made.center = &.{};
            self.tables[table].?[self.chunks + 1 - size] = made;
            self.chunks += 1;
        }
    }

    /// The vectors of rows from `first` on, one after the other.
    pub fn place(self: *Codes, first: u32, vectors: []const u8, count: u32) void {
        if (count == 0) return;
        const size = vectors.len / count;
        for (0..count) |i| {
            const row = first + @as(u32, @intCast(i));
            self.chunk(row / chunk_rows).vectors[row % chunk_rows] = vectors.ptr + i * size;
        }
    }
};

// ---- coding ----

/// Rows that one write codes at most.
pub const step_most = 8192;

/// Codes the next rows below `end`, a chunk at least and about `most` rows, in memory of the delta's. If another thread does, or memory
/// is short, searches go on measuring them.
pub fn code(allocator: std.mem.Allocator, codes: *Codes, shape: scan.Shape, end: u32, most: u32) void {
    if (codes.coded.load(.monotonic) + chunk_rows > end or !codes.coder.tryLock()) return;
    defer codes.coder.unlock();
    code_some(allocator, codes, shape, end, most) catch {};
}

fn code_some(allocator: std.mem.Allocator, codes: *Codes, shape: scan.Shape, end: u32, most: u32) error{OutOfMemory}!void {
    var row = codes.coded.load(.monotonic);
    if (row + chunk_rows > end) return;
    var coder: Coder = try .init(allocator, shape);
    defer coder.deinit(allocator);
    const last = row +| @max(most, chunk_rows);
    while (row + chunk_rows <= @min(end, last)) : (row += chunk_rows) {
        try coder.code(allocator, codes, codes.chunk(row / chunk_rows));
        codes.coded.store(row + chunk_rows, .release);
    }
}

const Coder = struct {
    shape: scan.Shape,
    encoder: quant.Encoder,
    /// A row as it is given, in the working space.
    row: []f32,
    /// All rows of a chunk, rotated.
    rotated: []f32,
    values: []u16,
    packed_code: []u8,

    fn init(allocator: std.mem.Allocator, shape: scan.Shape) error{OutOfMemory}!Coder {
        const params = params_of(shape.dim);
        var encoder: quant.Encoder = try .init(allocator, params);
        errdefer encoder.deinit(allocator);
        const row = try allocator.alloc(f32, shape.dim);
        errdefer allocator.free(row);
        const rotated = try allocator.alloc(f32, chunk_rows * params.dim);
        errdefer allocator.free(rotated);
        const values = try allocator.alloc(u16, params.dim);
        errdefer allocator.free(values);
        return .{ .shape = shape, .encoder = encoder, .row = row, .rotated = rotated, .values = values, .packed_code = try allocator.alloc(u8, params.upper_bytes()) };
    }

    fn deinit(self: *Coder, allocator: std.mem.Allocator) void {
        self.encoder.deinit(allocator);
        allocator.free(self.row);
        allocator.free(self.rotated);
        allocator.free(self.values);
        allocator.free(self.packed_code);
    }

    fn code(self: *Coder, allocator: std.mem.Allocator, codes: *Codes, chunk: *Chunk) error{OutOfMemory}!void {
        const params = self.encoder.params;
        if (codes.space == null) codes.space = try self.make_space(allocator, chunk);
        const own = &codes.space.?;
        const center = try allocator.alloc(f32, params.dim);
        errdefer allocator.free(center);
        @memset(center, 0);
        for (chunk.vectors, 0..) |vector, i| {
            self.take(vector);
            for (self.row, own.mean) |*value, mean| value.* -= mean;
            const out = self.rotated[i * params.dim ..][0..params.dim];
            own.rotation.apply(self.row, out);
            for (center, out) |*middle, value| middle.* += value / chunk_rows;
        }
        const size = blocks.block_bytes(params.dim, bits);
        const memory = try allocator.alignedAlloc(u8, .@"64", chunk_blocks * size);
        @memset(memory, 0);
        const form = space.form(metric_of(self.shape));
        const center_norm2 = self.encoder.kernels.sum_squares(center.ptr, params.dim);
        var errors: blocks.Errors = .none;
        var is_plain = center_norm2 < norm2_most;
        for (&chunk.factors, 0..) |*pair, i| {
            const out = self.rotated[i * params.dim ..][0..params.dim];
            for (out, center) |*value, middle| value.* -= middle;
            const factors = self.encoder.encode(out, self.values);
            is_plain = is_plain and factors.norm2 < norm2_most;
            pair.* = self.encoder.store_factors(form, self.values, factors, center, center_norm2).memory;
            errors.add(factors.norm2, factors.tan2_upper, quant.PositiveFloat.decode(@truncate(pair.*)));
            quant.pack(self.values, 0, bits, self.packed_code);
            blocks.put(params.dim, bits, memory[i / blocks.rows * size ..][0..size], i % blocks.rows, self.packed_code);
        }
        chunk.errors = errors;
        chunk.norm2 = center_norm2 + errors.norm2;
        chunk.center = center;
        if (is_plain) chunk.codes = memory else allocator.free(memory);
    }

    fn take(self: *Coder, vector: [*]const u8) void {
        space.convert(@enumFromInt(@intFromEnum(self.shape.dtype)), vector[0..self.shape.row_bytes()], self.row);
        space.place(metric_of(self.shape), self.row);
    }

    /// Around the mean of the first rows; of products around the origin, as in segments.
    fn make_space(self: *Coder, allocator: std.mem.Allocator, chunk: *const Chunk) error{OutOfMemory}!Space {
        var rotation: quant.Rotation = try .init(allocator, self.shape.dim, rotation_seed);
        errdefer rotation.deinit(allocator);
        const mean = try allocator.alloc(f32, self.shape.dim);
        errdefer allocator.free(mean);
        const origin = try allocator.alloc(f32, self.encoder.params.dim);
        @memset(origin, 0);
        @memset(mean, 0);
        if (self.shape.metric != .ip) for (chunk.vectors) |vector| {
            self.take(vector);
            for (mean, self.row) |*middle, value| middle.* += value / chunk_rows;
        };
        return .{ .rotation = rotation, .mean = mean, .origin = origin };
    }
};

// ---- estimates ----

/// Finds the nearest coded rows, for one query at a time.
pub const Estimator = struct {
    codes: *const Codes,
    measure: scan.Measure,
    query: quant.Query,
    row: []f32,
    rotated: []f32,

    /// Some rows are coded. What it allocates goes with the allocator's arena.
    pub fn init(arena: std.mem.Allocator, codes: *const Codes, shape: scan.Shape) error{OutOfMemory}!Estimator {
        const params = params_of(shape.dim);
        var query: quant.Query = try .init(arena, params);
        query.form = space.form(metric_of(shape));
        query.centers = codes.space.?.origin;
        return .{
            .codes = codes,
            .measure = .of(shape),
            .query = query,
            .row = try arena.alloc(f32, shape.dim),
            .rotated = try arena.alloc(f32, params.dim),
        };
    }

    /// Offers those of the first `rows` rows that pass and may be among the nearest.
    pub fn offer_to(self: *Estimator, asked: *scan.Asked, rows: u32) void {
        self.prepare(asked.point.values);
        for (0..rows / chunk_rows) |number| self.offer_chunk(asked, @intCast(number));
    }

    fn prepare(self: *Estimator, values: []const f32) void {
        const own = &self.codes.space.?;
        @memcpy(self.row, values);
        space.place(metric_of(self.measure.shape), self.row);
        for (self.row, own.mean) |*value, mean| value.* -= mean;
        own.rotation.apply(self.row, self.rotated);
        self.query.prepare(self.rotated);
    }

    fn offer_chunk(self: *Estimator, asked: *scan.Asked, number: u32) void {
        var left: [chunk_words]u64 = asked.passing.words[number * chunk_words ..][0..chunk_words].*;
        const chunk = self.codes.chunk(number);
        const first = number * chunk_rows;
        // Nothing bounds the first rows.
        while (!asked.nearest.is_full()) self.offer(asked, chunk, first, take(&left) orelse return);
        var count: u32 = 0;
        for (left) |word| count += @popCount(word);
        // Estimates of a query that is too far away are no numbers.
        if (count > measured_most and chunk.codes.len > 0 and self.query.norm2 < norm2_most) self.estimate(asked, chunk, &left);
        while (take(&left)) |at| self.offer(asked, chunk, first, at);
    }

    fn take(left: *[chunk_words]u64) ?u32 {
        for (left, 0..) |*word, w| {
            if (word.* == 0) continue;
            const at: u32 = @intCast(64 * w + @ctz(word.*));
            word.* &= word.* - 1;
            return at;
        }
        return null;
    }

    /// Leaves those that may be among the nearest.
    fn estimate(self: *Estimator, asked: *const scan.Asked, chunk: *const Chunk, left: *[chunk_words]u64) void {
        var estimates: [chunk_rows]f32 = undefined;
        var near: [chunk_blocks]u32 = undefined;
        const scale = space.compared_scale(metric_of(self.measure.shape));
        self.query.terms[0] = self.query.term_of(self.rotated, chunk.center);
        const reach = self.query.farthest_estimate(chunk.errors, deviations, scale * asked.nearest.farthest().distance);
        const lost = lost_share * (self.query.norm2 + chunk.norm2);
        self.query.estimate_blocks(chunk.codes, &chunk.factors, &centers, reach + lost, &estimates, &near);
        for (left, 0..) |*word, w| word.* &= near[2 * w] | @as(u64, near[2 * w + 1]) << 32;
    }

    fn offer(self: *const Estimator, asked: *scan.Asked, chunk: *const Chunk, first: u32, at: u32) void {
        const vector = chunk.vectors[at];
        const nearest = &asked.nearest;
        if (nearest.is_full() and self.measure.at_least(asked.point, vector) > nearest.farthest().distance) return;
        nearest.offer(.{ .distance = self.measure.exact(asked.point, vector), .row = first + at });
    }
};
