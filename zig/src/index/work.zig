//! Work files of a build: what must wait until placement, in row order. They grow at their end while rows are encoded
//! and are read back through the page cache, not mapped, so they do not count against the memory of the build. A build
//! that cannot be resumed holds them in memory, as far as its budget has room.
const std = @import("std");
const base = @import("base");
const quant = @import("quant");
const files = @import("files.zig");
const diagnostics = @import("diagnostic.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

/// Codes as they will be stored.
pub const codes_name = "codes.work";
/// Codes for construction.
pub const points_name = "points.work";
pub const vectors_name = "vectors.work";
/// The graph of each partition: of every member in the order of rows its list, as `put_list` writes it.
pub const parts_name = "parts.work";
pub const lists_name = "lists.work";
pub const placed_lists_name = "placed_lists.work";
/// Product codes by vertex.
pub const placed_codes_name = "placed_codes.work";

/// upper code, lower code, the number of the center, then the factors as memory and as the record will have them.
pub fn row_bytes_of(params: quant.CodeParams) usize {
    return params.upper_bytes() + params.lower_bytes() + 1 + 4 + 4 + 2;
}

/// The mean squared tangents of the code errors, and how |o|² goes with F², as sums over rows.
pub const CodeErrors = extern struct {
    tan2_upper: f64 = 0,
    tan2_full: f64 = 0,
    norm2_per_f2: f64 = 0,
    /// Rows that are their center have no direction, and do not count.
    count: u64 = 0,

    fn join(self: *CodeErrors, other: *const CodeErrors) void {
        self.tan2_upper += other.tan2_upper;
        self.tan2_full += other.tan2_full;
        self.norm2_per_f2 += other.norm2_per_f2;
        self.count += other.count;
    }
};

pub fn store_row(params: quant.CodeParams, code: []const u16, center: u8, factors: *const quant.Factors, kept: *const quant.StoredFactors, out: []u8, errors: *CodeErrors) void {
    const upper = params.upper_bytes();
    const lower = params.lower_bytes();
    quant.pack(code, @intCast(params.record_bits), params.memory_bits, out[0..upper]);
    if (params.record_bits > 0) quant.pack(code, 0, params.record_bits, out[upper..][0..lower]);
    put_factors(center, kept, out[upper + lower ..]);
    if (!(factors.f_upper > 0)) return;
    errors.tan2_upper += factors.tan2_upper;
    errors.tan2_full += factors.tan2_full;
    errors.norm2_per_f2 += factors.norm2 / factors.f_upper / factors.f_upper;
    errors.count += 1;
}

/// Takes the bytes that `store_row` made of the same row before: nothing is encoded.
pub fn copy_row(params: quant.CodeParams, upper: []const u8, lower: []const u8, center: u8, kept: *const quant.StoredFactors, out: []u8) void {
    @memcpy(out[0..params.upper_bytes()], upper);
    @memcpy(out[upper.len..][0..params.lower_bytes()], lower);
    put_factors(center, kept, out[upper.len + lower.len ..]);
}

fn put_factors(center: u8, kept: *const quant.StoredFactors, rest: []u8) void {
    rest[0] = center;
    std.mem.writeInt(u32, rest[1..5], kept.memory, .little);
    std.mem.writeInt(u32, rest[5..9], @bitCast(kept.record.offset), .little);
    std.mem.writeInt(u16, rest[9..11], kept.record.ratio, .little);
}

/// A file that grows at its end and knows the checksum (xxh3-64) of what it holds so far; or as much memory.
pub const GrowingFile = struct {
    allocator: std.mem.Allocator,
    /// Null: `held` has it all, and no checksum is taken.
    file: ?std.fs.File,
    held: []u8 = &.{},
    name: []const u8,
    buffer: []u8,
    used: usize = 0,
    bytes: u64 = 0,
    hash: std.hash.XxHash3 = .init(0),

    const buffer_bytes = 1 << 17;

    /// The size of a file, and its checksum.
    pub const Mark = extern struct { bytes: u64 = 0, checksum: u64 = 0 };

    pub fn create(allocator: std.mem.Allocator, dir: std.fs.Dir, name: []const u8, diagnostic: *Diagnostic) Error!GrowingFile {
        const file = dir.createFile(name, .{ .truncate = true, .read = true }) catch |err| return diagnostics.file_error(diagnostic, name, "create", err);
        errdefer file.close();
        return .{ .allocator = allocator, .file = file, .name = name, .buffer = try allocator.alloc(u8, buffer_bytes) };
    }

    /// In memory, for so many bytes and no more.
    pub fn hold(allocator: std.mem.Allocator, name: []const u8, capacity: usize) error{OutOfMemory}!GrowingFile {
        return .{ .allocator = allocator, .file = null, .held = try base.alloc_untouched(allocator, u8, capacity), .name = name, .buffer = &.{} };
    }

    /// Goes on behind `mark`; null where the file does not hold what the mark says.
    pub fn reopen(allocator: std.mem.Allocator, dir: std.fs.Dir, name: []const u8, mark: Mark) error{OutOfMemory}!?GrowingFile {
        const file = dir.openFile(name, .{ .mode = .read_write }) catch return null;
        var self: GrowingFile = .{ .allocator = allocator, .file = file, .name = name, .buffer = undefined };
        var kept = false;
        defer if (!kept) file.close();
        self.buffer = try allocator.alloc(u8, buffer_bytes);
        defer if (!kept) allocator.free(self.buffer);
        while (self.bytes < mark.bytes) {
            const wanted: usize = @intCast(@min(self.buffer.len, mark.bytes - self.bytes));
            const got = file.preadAll(self.buffer[0..wanted], self.bytes) catch return null;
            if (got != wanted) return null;
            self.hash.update(self.buffer[0..got]);
            self.bytes += got;
        }
        if (self.hash.final() != mark.checksum) return null;
        file.setEndPos(mark.bytes) catch return null;
        file.seekTo(mark.bytes) catch return null;
        kept = true;
        return self;
    }

    pub fn deinit(self: *GrowingFile) void {
        if (self.file) |file| file.close() else base.free_untouched(self.allocator, self.held);
        self.allocator.free(self.buffer);
    }

    pub fn append(self: *GrowingFile, bytes: []const u8, diagnostic: *Diagnostic) Error!void {
        if (self.file == null) {
            @memcpy(self.held[@intCast(self.bytes)..][0..bytes.len], bytes);
            self.bytes += bytes.len;
            return;
        }
        var rest = bytes;
        while (rest.len > 0) {
            const len = @min(rest.len, self.buffer.len - self.used);
            @memcpy(self.buffer[self.used..][0..len], rest[0..len]);
            self.used += len;
            rest = rest[len..];
            if (self.used == self.buffer.len) try self.flush(diagnostic);
        }
    }

    pub fn flush(self: *GrowingFile, diagnostic: *Diagnostic) Error!void {
        const file = self.file orelse return;
        file.writeAll(self.buffer[0..self.used]) catch |err| return diagnostics.file_error(diagnostic, self.name, "write", err);
        self.hash.update(self.buffer[0..self.used]);
        self.bytes += self.used;
        self.used = 0;
    }

    /// Everything so far is on the device when this returns.
    pub fn sync(self: *GrowingFile, diagnostic: *Diagnostic) Error!Mark {
        try self.flush(diagnostic);
        const file = self.file orelse return .{};
        file.sync() catch |err| return diagnostics.file_error(diagnostic, self.name, "sync", err);
        return .{ .bytes = self.bytes, .checksum = self.hash.final() };
    }

    /// Reads `buffer.len` bytes; all of the file has been flushed.
    pub fn read_at(self: *const GrowingFile, buffer: []u8, at: u64, diagnostic: *Diagnostic) Error!void {
        const file = self.file orelse return @memcpy(buffer, self.held[@intCast(at)..][0..buffer.len]);
        const len = file.preadAll(buffer, at) catch |err| return diagnostics.file_error(diagnostic, self.name, "read", err);
        if (len == buffer.len) return;
        diagnostic.in_file(self.name, "{s} ended early at byte {d}", .{ self.name, at + len });
        return error.Io;
    }
};

pub const Row = struct { upper: []const u8, lower: []const u8, center: u8, memory_factors: u32, record_factors: quant.RecordFactors, product: []const u8 };

pub const CodesFile = struct {
    file: GrowingFile,
    params: quant.CodeParams,
    row_bytes: usize,
    errors: CodeErrors = .{},

    /// `code_bytes`: of the product code behind the rest of each row.
    pub fn init(file: GrowingFile, params: quant.CodeParams, code_bytes: u32) CodesFile {
        return .{ .file = file, .params = params, .row_bytes = row_bytes_of(params) + code_bytes };
    }

    pub fn append(self: *CodesFile, bytes: []const u8, errors: *const CodeErrors, diagnostic: *Diagnostic) Error!void {
        self.errors.join(errors);
        try self.file.append(bytes, diagnostic);
    }

    /// Reads row `index` into `buffer` (row_bytes).
    pub fn read(self: *const CodesFile, index: u32, buffer: []u8, diagnostic: *Diagnostic) Error!Row {
        try self.file.read_at(buffer[0..self.row_bytes], @as(u64, index) * self.row_bytes, diagnostic);
        const upper = self.params.upper_bytes();
        const lower = self.params.lower_bytes();
        const rest = buffer[upper + lower ..];
        return .{
            .upper = buffer[0..upper],
            .lower = buffer[upper..][0..lower],
            .center = rest[0],
            .memory_factors = std.mem.readInt(u32, rest[1..5], .little),
            .record_factors = .{ .offset = @bitCast(std.mem.readInt(u32, rest[5..9], .little)), .ratio = std.mem.readInt(u16, rest[9..11], .little) },
            .product = buffer[row_bytes_of(self.params)..self.row_bytes],
        };
    }
};

/// Construction codes: of every row the code's bytes, then its factors; or the codes as a graph in one piece is built over
/// them, from the start.
pub const PointsFile = struct {
    file: GrowingFile,
    dim: u32,
    row_bytes: usize,
    held: ?quant.BuildCodes = null,
    held_count: usize = 0,

    const Factors = quant.BuildCodes.PairFactors;

    pub fn init(file: GrowingFile, dim: u32) PointsFile {
        return .{ .file = file, .dim = dim, .row_bytes = row_bytes_of_dim(dim) };
    }

    pub fn hold(allocator: std.mem.Allocator, n: u32, dim: u32) error{OutOfMemory}!PointsFile {
        var self = init(try .hold(allocator, points_name, 0), dim);
        errdefer self.file.deinit();
        self.held = try quant.BuildCodes.init(n, dim);
        return self;
    }

    pub fn deinit(self: *PointsFile) void {
        if (self.held) |*points| points.deinit();
        self.file.deinit();
    }

    /// The points of all rows, as `load` would return them; the caller's from now on.
    pub fn take(self: *PointsFile) ?quant.BuildCodes {
        defer self.held = null;
        return self.held;
    }

    fn row_bytes_of_dim(dim: u32) usize {
        return dim + @sizeOf(Factors);
    }

    /// The first `count` of `points`.
    pub fn append(self: *PointsFile, points: *const quant.BuildCodes, count: u32, diagnostic: *Diagnostic) Error!void {
        if (self.held) |*held| {
            @memcpy(held.codes[self.held_count * self.dim ..][0 .. count * self.dim], points.codes[0 .. count * self.dim]);
            @memcpy(held.factors[self.held_count..][0..count], points.factors[0..count]);
            self.held_count += count;
            return;
        }
        for (0..count) |i| {
            try self.file.append(points.codes[i * self.dim ..][0..self.dim], diagnostic);
            try self.file.append(std.mem.asBytes(&points.factors[i]), diagnostic);
        }
    }

    /// Rows `first`, `first + 1`, … become the points `to`, `to + 1`, … of `points`.
    pub fn load(self: *const PointsFile, points: *quant.BuildCodes, to: u32, first: u64, count: u32, diagnostic: *Diagnostic) Error!void {
        const buffer = try self.file.allocator.alloc(u8, @max(self.row_bytes, files.chunk_bytes));
        defer self.file.allocator.free(buffer);
        const run: u32 = @intCast(buffer.len / self.row_bytes);
        var done: u32 = 0;
        while (done < count) {
            const some = @min(run, count - done);
            const bytes = buffer[0 .. some * self.row_bytes];
            try self.file.read_at(bytes, (first + done) * self.row_bytes, diagnostic);
            for (0..some) |i| self.put(points, to + done + i, bytes[i * self.row_bytes ..]);
            done += some;
        }
    }

    /// `rows`, ascending, become the first points of `points`.
    pub fn load_rows(self: *const PointsFile, points: *quant.BuildCodes, rows: []const u32, diagnostic: *Diagnostic) Error!void {
        const buffer = try self.file.allocator.alloc(u8, @max(self.row_bytes, gather_bytes));
        defer self.file.allocator.free(buffer);
        const run = buffer.len / self.row_bytes;
        var done: usize = 0;
        while (done < rows.len) {
            const first = rows[done];
            var end = done + 1;
            while (end < rows.len and rows[end] - first < run) end += 1;
            const bytes = buffer[0 .. (rows[end - 1] - first + 1) * self.row_bytes];
            try self.file.read_at(bytes, @as(u64, first) * self.row_bytes, diagnostic);
            for (rows[done..end], done..) |row, point| self.put(points, point, bytes[(row - first) * self.row_bytes ..]);
            done = end;
        }
    }

    /// Rows this near to each other are read together, with what lies between them.
    const gather_bytes = 1 << 16;

    fn put(self: *const PointsFile, points: *quant.BuildCodes, point: usize, row: []const u8) void {
        @memcpy(points.codes[point * self.dim ..][0..self.dim], row[0..self.dim]);
        points.factors[point] = std.mem.bytesToValue(Factors, row[self.dim..][0..@sizeOf(Factors)]);
    }
};

// ---- lists ----
//
// Neighbor lists of a partitioned build, in work files: a byte for the number of neighbors, then their rows, in three bytes
// each where that is enough. Read back through the page cache, not mapped, so they do not count against the memory of the build.

/// Bytes of a neighbor among so many rows.
pub fn neighbor_bytes_of(n: u32) u8 {
    return if (n <= 1 << 24) 3 else 4;
}

/// Bytes of the longest list.
pub const list_bytes_max = 1 + 255 * 4;

pub fn put_list(list: []const u32, neighbor_bytes: u8, out: *[list_bytes_max]u8) []const u8 {
    out[0] = @intCast(list.len);
    switch (neighbor_bytes) {
        3 => for (list, 0..) |row, i| std.mem.writeInt(u24, out[1 + 3 * i ..][0..3], @intCast(row), .little),
        else => for (list, 0..) |row, i| std.mem.writeInt(u32, out[1 + 4 * i ..][0..4], row, .little),
    }
    return out[0 .. 1 + list.len * neighbor_bytes];
}

/// Null where `bytes` do not hold a whole list.
pub fn take_list(bytes: []const u8, neighbor_bytes: u8, out: *[255]u32) ?[]u32 {
    if (bytes.len == 0 or bytes.len - 1 < @as(usize, bytes[0]) * neighbor_bytes) return null;
    const list = out[0..bytes[0]];
    switch (neighbor_bytes) {
        3 => for (list, 0..) |*row, i| {
            row.* = std.mem.readInt(u24, bytes[1 + 3 * i ..][0..3], .little);
        },
        else => for (list, 0..) |*row, i| {
            row.* = std.mem.readInt(u32, bytes[1 + 4 * i ..][0..4], .little);
        },
    }
    return list;
}

/// One place of the same size for every vertex.
pub const ListFile = struct {
    file: GrowingFile,
    degree_max: u32,
    neighbor_bytes: u8,
    n: u32 = 0,
    /// Places read together once reads are sequential: from `window_first` on.
    window: []u8,
    window_first: u32 = 0,
    window_count: u32 = 0,
    latest: u32 = std.math.maxInt(u32),
    list: [255]u32 = undefined,

    const window_bytes = 1 << 16;

    pub fn create(allocator: std.mem.Allocator, dir: std.fs.Dir, name: []const u8, rows: u32, degree_max: u32, diagnostic: *Diagnostic) Error!ListFile {
        var file = try GrowingFile.create(allocator, dir, name, diagnostic);
        errdefer file.deinit();
        const neighbor_bytes = neighbor_bytes_of(rows);
        const place = 1 + degree_max * neighbor_bytes;
        return .{ .file = file, .degree_max = degree_max, .neighbor_bytes = neighbor_bytes, .window = try allocator.alloc(u8, @max(1, window_bytes / place) * place) };
    }

    pub fn deinit(self: *ListFile) void {
        self.file.allocator.free(self.window);
        self.file.deinit();
    }

    fn place_bytes(self: *const ListFile) usize {
        return 1 + self.degree_max * self.neighbor_bytes;
    }

    pub fn append(self: *ListFile, list: []const u32, diagnostic: *Diagnostic) Error!void {
        var place: [list_bytes_max]u8 = @splat(0);
        _ = put_list(list, self.neighbor_bytes, &place);
        try self.file.append(place[0..self.place_bytes()], diagnostic);
        self.n += 1;
    }

    /// All that was appended can be read from now on.
    pub fn flush(self: *ListFile, diagnostic: *Diagnostic) Error!void {
        try self.file.flush(diagnostic);
    }

    /// The list of a vertex; valid until the next call.
    pub fn read(self: *ListFile, vertex: u32, diagnostic: *Diagnostic) Error![]u32 {
        std.debug.assert(vertex < self.n);
        const place = self.place_bytes();
        if (vertex < self.window_first or vertex - self.window_first >= self.window_count) {
            const room: u32 = @intCast(self.window.len / place);
            self.window_count = 0;
            const count = if (vertex == self.latest +% 1) @min(room, self.n - vertex) else 1;
            try self.file.read_at(self.window[0 .. count * place], @as(u64, vertex) * place, diagnostic);
            self.window_first = vertex;
            self.window_count = count;
        }
        self.latest = vertex;
        return take_list(self.window[(vertex - self.window_first) * place ..][0..place], self.neighbor_bytes, &self.list) orelse {
            diagnostic.in_file(self.file.name, "{s} was changed while it was in use", .{self.file.name});
            return error.Io;
        };
    }

    pub fn write(self: *ListFile, vertex: u32, list: []const u32, diagnostic: *Diagnostic) Error!void {
        var place: [list_bytes_max]u8 = undefined;
        self.file.file.?.pwriteAll(put_list(list, self.neighbor_bytes, &place), @as(u64, vertex) * self.place_bytes()) catch |err|
            return diagnostics.file_error(diagnostic, self.file.name, "write", err);
        self.window_count = 0;
    }
};

test "lists read back in any order, and as they were last written" {
    const allocator = std.testing.allocator;
    var tmp = std.testing.tmpDir(.{});
    defer tmp.cleanup();
    var diagnostic: Diagnostic = .{};
    const seed = std.testing.random_seed;
    errdefer std.debug.print("seed={d}\n", .{seed});
    var prng = base.Prng.init(seed);
    const n = 5000;
    const degree_max = 7;
    const model = try allocator.alloc([degree_max]u32, n);
    defer allocator.free(model);
    const degrees = try allocator.alloc(u32, n);
    defer allocator.free(degrees);
    const rows: u32 = if (prng.boolean()) 1 << 24 else std.math.maxInt(u32);
    var lists = try ListFile.create(allocator, tmp.dir, "lists.work", rows, degree_max, &diagnostic);
    defer lists.deinit();
    for (model, degrees) |*list, *degree| {
        degree.* = @intCast(prng.below(degree_max + 1));
        for (list) |*id| id.* = @intCast(prng.below(rows));
        try lists.append(list[0..degree.*], &diagnostic);
    }
    try lists.flush(&diagnostic);
    for (model, degrees, 0..) |*list, degree, vertex|
        try std.testing.expectEqualSlices(u32, list[0..degree], try lists.read(@intCast(vertex), &diagnostic));
    var vertex: u32 = 0;
    for (0..20_000) |_| {
        vertex = if (prng.boolean() and vertex + 1 < n) vertex + 1 else @intCast(prng.below(n));
        if (prng.below(4) == 0) {
            degrees[vertex] = @intCast(prng.below(degree_max + 1));
            model[vertex][0] = @intCast(prng.below(rows));
            try lists.write(vertex, model[vertex][0..degrees[vertex]], &diagnostic);
        }
        try std.testing.expectEqualSlices(u32, model[vertex][0..degrees[vertex]], try lists.read(vertex, &diagnostic));
    }
}
