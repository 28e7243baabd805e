//! The work that a build leaves so that a later one of the same input and options can go on: how far encoding came, the
//! graph (half made, then whole; or those of so many partitions), the placement, and the list of finished files. Each is a sealed file
//! that names its build; one that is missing, damaged or of another build means that its stage starts again.
const std = @import("std");
const base = @import("base");
const graph = @import("graph");
const diagnostics = @import("diagnostic.zig");
const files = @import("files.zig");
const work = @import("work.zig");
const writer = @import("writer.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

// ---- sealed files ----
//
// Work files that a later build of the same input may go on from. Such a file appears whole or not at all (temporary
// file, fsync, rename, fsync of the folder) and ends in a trailer that says which build it belongs to, how far it got
// and what the checksum of everything before the trailer is. Whatever does not fit is as good as missing.

const sealed_magic = std.mem.readInt(u64, "velowork", .little);

const Trailer = extern struct {
    magic: u64 = sealed_magic,
    /// Of the build: its input, its options, its uuid.
    identity: u64,
    /// The progress of the stage and the form of the payload; their meaning is the stage's own.
    count: u64,
    form: u64,
    payload_bytes: u64,
    payload_sum: u64,
    /// Of the fields before.
    checksum: u64 = 0,

    fn sum(self: *const Trailer) u64 {
        return base.checksum(std.mem.asBytes(self)[0..@offsetOf(Trailer, "checksum")]);
    }
};

const SealedWriter = struct {
    dir: std.fs.Dir,
    name: []const u8,
    file: files.FileWriter,

    pub fn create(allocator: std.mem.Allocator, dir: std.fs.Dir, comptime name: []const u8, diagnostic: *Diagnostic) Error!SealedWriter {
        return .{ .dir = dir, .name = name, .file = try files.FileWriter.create(allocator, dir, name ++ ".tmp", diagnostic) };
    }

    pub fn deinit(self: *SealedWriter) void {
        self.file.deinit();
    }

    pub fn write(self: *SealedWriter, bytes: []const u8) Error!void {
        try self.file.write(bytes);
    }

    /// From now on the file stands under its name.
    pub fn seal(self: *SealedWriter, identity: u64, count: u64, form: u64) Error!void {
        const diagnostic = self.file.diagnostic;
        const payload = try self.file.so_far();
        var trailer: Trailer = .{ .identity = identity, .count = count, .form = form, .payload_bytes = payload.bytes, .payload_sum = payload.checksum };
        trailer.checksum = trailer.sum();
        self.file.file.writeAll(std.mem.asBytes(&trailer)) catch |err| return diagnostics.file_error(diagnostic, self.name, "write", err);
        self.file.file.sync() catch |err| return diagnostics.file_error(diagnostic, self.name, "sync", err);
        self.dir.rename(self.file.name, self.name) catch |err| return diagnostics.file_error(diagnostic, self.name, "rename", err);
        std.posix.fsync(self.dir.fd) catch |err| return diagnostics.file_error(diagnostic, self.name, "sync", err);
    }
};

const SealedReader = struct {
    allocator: std.mem.Allocator,
    file: std.fs.File,
    count: u64,
    form: u64,
    left: u64,
    buffer: []u8,
    held: []const u8 = &.{},

    /// Null where there is no such file, or it is not whole, or of another build.
    pub fn open(allocator: std.mem.Allocator, dir: std.fs.Dir, name: []const u8, identity: u64) error{OutOfMemory}!?SealedReader {
        const file = dir.openFile(name, .{}) catch return null;
        var kept = false;
        defer if (!kept) file.close();
        const size = file.getEndPos() catch return null;
        if (size < @sizeOf(Trailer)) return null;
        var trailer: Trailer = undefined;
        const got = file.preadAll(std.mem.asBytes(&trailer), size - @sizeOf(Trailer)) catch return null;
        if (got != @sizeOf(Trailer) or trailer.magic != sealed_magic or trailer.checksum != trailer.sum()) return null;
        if (trailer.identity != identity or trailer.payload_bytes != size - @sizeOf(Trailer)) return null;
        const summary = files.summarize_first(allocator, file, trailer.payload_bytes) catch |err| switch (err) {
            error.OutOfMemory => return error.OutOfMemory,
            else => return null,
        };
        if (summary.bytes != trailer.payload_bytes or summary.checksum != trailer.payload_sum) return null;
        file.seekTo(0) catch return null;
        const buffer = try allocator.alloc(u8, files.chunk_bytes);
        kept = true;
        return .{ .allocator = allocator, .file = file, .count = trailer.count, .form = trailer.form, .left = trailer.payload_bytes, .buffer = buffer };
    }

    pub fn deinit(self: *SealedReader) void {
        self.allocator.free(self.buffer);
        self.file.close();
    }

    /// False if the payload ends before `out` is full, or cannot be read.
    pub fn read(self: *SealedReader, out: []u8) bool {
        var rest = out;
        while (rest.len > 0) {
            if (self.held.len == 0) {
                const wanted: usize = @intCast(@min(self.left, self.buffer.len));
                const got = self.file.readAll(self.buffer[0..wanted]) catch return false;
                if (got == 0) return false;
                self.left -= got;
                self.held = self.buffer[0..got];
            }
            const len = @min(rest.len, self.held.len);
            @memcpy(rest[0..len], self.held[0..len]);
            rest = rest[len..];
            self.held = self.held[len..];
        }
        return true;
    }
};

// ---- stages ----

pub const encode_name = "encode.work";
pub const graph_name = "graph.work";
pub const parts_name = "partitions.work";
pub const placement_name = "placement.work";
pub const written_name = "written.work";

/// Raised whenever a build of other code must not go on from these files.
pub const version: u64 = 4;

/// The progress of encoding, and the identity of the build.
pub const Encoded = extern struct {
    rows: u64,
    uuid: [36]u8,
    salt: u32,
    errors: work.CodeErrors,
    codes: work.GrowingFile.Mark,
    points: work.GrowingFile.Mark,
    vectors: work.GrowingFile.Mark,
};

pub fn save_encoded(allocator: std.mem.Allocator, dir: std.fs.Dir, identity: u64, encoded: *const Encoded, diagnostic: *Diagnostic) Error!void {
    var file = try SealedWriter.create(allocator, dir, encode_name, diagnostic);
    defer file.deinit();
    try file.write(std.mem.asBytes(encoded));
    try file.seal(identity, encoded.rows, 0);
}

pub fn load_encoded(allocator: std.mem.Allocator, dir: std.fs.Dir, identity: u64) error{OutOfMemory}!?Encoded {
    var file = try SealedReader.open(allocator, dir, encode_name, identity) orelse return null;
    defer file.deinit();
    var encoded: Encoded = undefined;
    return if (file.read(std.mem.asBytes(&encoded))) encoded else null;
}

// ---- the graph

const Form = enum(u64) { half, whole, _ };

/// Of a vertex in graph.work, before its neighbors.
const RowHead = extern struct { degree: u32, radius: f32 };

/// Saves the graph while it is built and when it is whole (vamana.zig calls `restore`, `due` and `save`).
pub const GraphKeeper = struct {
    allocator: std.mem.Allocator,
    dir: std.fs.Dir,
    identity: u64,
    diagnostic: *Diagnostic,
    interval_us: u64,
    last_us: u64,
    /// The time of the last save: saving must stay a small share of the work.
    cost_us: u64 = 0,
    failure: Error = error.Internal,

    /// At most one part in so many of the time goes into saving.
    const cost_share = 20;

    pub fn due(self: *GraphKeeper) bool {
        return base.nowMicros() - self.last_us >= @max(self.interval_us, cost_share * self.cost_us);
    }

    pub fn save(self: *GraphKeeper, insertion: *const graph.Insertion) error{NotKept}!void {
        const started = base.nowMicros();
        self.write_half(insertion) catch |err| {
            self.failure = err;
            return error.NotKept;
        };
        self.last_us = base.nowMicros();
        self.cost_us = self.last_us - started;
    }

    fn write_half(self: *GraphKeeper, insertion: *const graph.Insertion) Error!void {
        var file = try SealedWriter.create(self.allocator, self.dir, graph_name, self.diagnostic);
        defer file.deinit();
        for (insertion.order[0..insertion.inserted]) |vertex| {
            try file.write(std.mem.asBytes(&RowHead{ .degree = insertion.graph.degrees[vertex], .radius = insertion.radii[vertex] }));
            try file.write(std.mem.sliceAsBytes(insertion.graph.list(vertex)));
        }
        try file.seal(self.identity, insertion.inserted, @intFromEnum(Form.half));
    }

    pub fn restore(self: *GraphKeeper, insertion: *graph.Insertion) error{OutOfMemory}!void {
        var file = try SealedReader.open(self.allocator, self.dir, graph_name, self.identity) orelse return;
        defer file.deinit();
        if (file.form != @intFromEnum(Form.half) or file.count > insertion.order.len) return;
        const done = for (insertion.order[0..@intCast(file.count)], 0..) |vertex, i| {
            insertion.radii[vertex] = read_row(&file, insertion.graph, vertex) orelse break i;
        } else file.count;
        if (done == file.count) {
            insertion.inserted = @intCast(done);
            return;
        }
        for (insertion.order[0..@intCast(done + 1)]) |vertex| {
            insertion.graph.degrees[vertex] = 0;
            insertion.radii[vertex] = std.math.inf(f32);
        }
    }

    pub fn save_whole(self: *GraphKeeper, built: *const graph.Graph) Error!void {
        var file = try SealedWriter.create(self.allocator, self.dir, graph_name, self.diagnostic);
        defer file.deinit();
        try file.write(std.mem.asBytes(&built.entry));
        for (0..built.n) |vertex| {
            try file.write(std.mem.asBytes(&RowHead{ .degree = built.degrees[vertex], .radius = 0 }));
            try file.write(std.mem.sliceAsBytes(built.list(@intCast(vertex))));
        }
        try file.seal(self.identity, built.n, @intFromEnum(Form.whole));
    }

    pub fn load_whole(self: *GraphKeeper, n: u32, degree: u32) error{OutOfMemory}!?graph.Graph {
        var file = try SealedReader.open(self.allocator, self.dir, graph_name, self.identity) orelse return null;
        defer file.deinit();
        if (file.form != @intFromEnum(Form.whole) or file.count != n) return null;
        var built: graph.Graph = .{
            .n = n,
            .degree_max = degree,
            .neighbors = try base.alloc_untouched(self.allocator, u32, @as(usize, n) * degree),
            .degrees = &.{},
            .entry = 0,
        };
        var kept = false;
        defer if (!kept) built.deinit(self.allocator);
        built.degrees = try base.alloc_untouched(self.allocator, u16, n);
        if (!file.read(std.mem.asBytes(&built.entry)) or built.entry >= n) return null;
        for (0..n) |vertex| _ = read_row(&file, &built, @intCast(vertex)) orelse return null;
        kept = true;
        return built;
    }

    fn read_row(file: *SealedReader, built: *graph.Graph, vertex: u32) ?f32 {
        var head: RowHead = undefined;
        if (!file.read(std.mem.asBytes(&head)) or head.degree > built.degree_max) return null;
        built.degrees[vertex] = @intCast(head.degree);
        return if (file.read(std.mem.sliceAsBytes(built.list(vertex)))) head.radius else null;
    }
};

/// Saves how many of a partitioned build's graphs are made.
pub const PartsKeeper = struct {
    allocator: std.mem.Allocator,
    dir: std.fs.Dir,
    identity: u64,
    diagnostic: *Diagnostic,

    /// `offsets`: where in `parts` each graph begins, and where the last one ends; `rows` is how far a whole graph would be.
    pub fn save(self: *const PartsKeeper, parts: *work.GrowingFile, offsets: []const u64, rows: u64) Error!void {
        const mark = try parts.sync(self.diagnostic);
        var file = try SealedWriter.create(self.allocator, self.dir, parts_name, self.diagnostic);
        defer file.deinit();
        try file.write(std.mem.asBytes(&mark));
        try file.write(std.mem.sliceAsBytes(offsets));
        try file.seal(self.identity, rows, offsets.len - 1);
    }

    /// The graphs that are made, in the file of that name; null where there are none.
    pub fn restore(self: *const PartsKeeper, name: []const u8, offsets: []u64, done: *u32) error{OutOfMemory}!?work.GrowingFile {
        var file = try SealedReader.open(self.allocator, self.dir, parts_name, self.identity) orelse return null;
        defer file.deinit();
        if (file.form >= offsets.len) return null;
        const made: u32 = @intCast(file.form);
        var mark: work.GrowingFile.Mark = undefined;
        if (!file.read(std.mem.asBytes(&mark)) or !file.read(std.mem.sliceAsBytes(offsets[0 .. made + 1]))) return null;
        const parts = try work.GrowingFile.reopen(self.allocator, self.dir, name, mark) orelse return null;
        done.* = made;
        return parts;
    }
};

/// Vertices in a saved graph, and whether it is whole; null where none is saved.
pub fn look_at_graph(allocator: std.mem.Allocator, dir: std.fs.Dir, identity: u64, partitions: u32) error{OutOfMemory}!?struct { vertices: u64, whole: bool } {
    var file = try SealedReader.open(allocator, dir, if (partitions > 0) parts_name else graph_name, identity) orelse return null;
    defer file.deinit();
    return .{ .vertices = file.count, .whole = file.form == if (partitions > 0) partitions else @intFromEnum(Form.whole) };
}

// ---- the placement

pub const Placed = struct {
    placement: graph.Placement,
    colors: []u8,

    pub fn deinit(self: *Placed, allocator: std.mem.Allocator) void {
        self.placement.deinit(allocator);
        base.free_untouched(allocator, self.colors);
    }
};

pub fn save_placed(allocator: std.mem.Allocator, dir: std.fs.Dir, identity: u64, placed: *const Placed, diagnostic: *Diagnostic) Error!void {
    var file = try SealedWriter.create(allocator, dir, placement_name, diagnostic);
    defer file.deinit();
    try file.write(std.mem.sliceAsBytes(placed.placement.order));
    try file.write(std.mem.sliceAsBytes(placed.placement.page_first));
    try file.write(placed.colors);
    try file.seal(identity, placed.placement.order.len, placed.placement.page_first.len);
}

pub fn load_placed(allocator: std.mem.Allocator, dir: std.fs.Dir, identity: u64, n: u32) error{OutOfMemory}!?Placed {
    var file = try SealedReader.open(allocator, dir, placement_name, identity) orelse return null;
    defer file.deinit();
    if (file.count != n or file.form > n) return null;
    const order = try base.alloc_untouched(allocator, u32, n);
    var kept = false;
    defer if (!kept) base.free_untouched(allocator, order);
    const page_first = try allocator.alloc(u32, @intCast(file.form));
    defer if (!kept) allocator.free(page_first);
    const colors = try base.alloc_untouched(allocator, u8, n);
    defer if (!kept) base.free_untouched(allocator, colors);
    if (!file.read(std.mem.sliceAsBytes(order)) or !file.read(std.mem.sliceAsBytes(page_first)) or !file.read(colors)) return null;
    kept = true;
    return .{ .placement = .{ .order = order, .page_first = page_first }, .colors = colors };
}

// ---- the files of the index

/// The result of `writer.write`; then for every file the length of its name, its name, its size and sum.
const WrittenHead = extern struct {
    links_built: u32,
    page_size: u32,
    page_count: u32,
    file_count: u32,
    edges: u64,
    adjacency_bits: u64,
};

const WrittenFile = extern struct { name: [32]u8 = @splat(0), bytes: u64, checksum: u64 };

pub fn save_written(allocator: std.mem.Allocator, dir: std.fs.Dir, identity: u64, written: *const writer.Written, diagnostic: *Diagnostic) Error!void {
    var file = try SealedWriter.create(allocator, dir, written_name, diagnostic);
    defer file.deinit();
    try file.write(std.mem.asBytes(&WrittenHead{
        .links_built = written.links_built,
        .page_size = written.page_size,
        .page_count = written.page_count,
        .file_count = @intCast(written.files.items.len),
        .edges = written.edges,
        .adjacency_bits = written.adjacency_bits,
    }));
    for (written.files.items) |item| {
        var entry: WrittenFile = .{ .bytes = item.summary.bytes, .checksum = item.summary.checksum };
        @memcpy(entry.name[0..item.name.len], item.name);
        try file.write(std.mem.asBytes(&entry));
    }
    try file.seal(identity, written.files.items.len, 0);
}

/// Null also where a file is no longer what it was. `names` are the files that an index can have.
pub fn load_written(allocator: std.mem.Allocator, dir: std.fs.Dir, identity: u64, names: []const []const u8) error{OutOfMemory}!?writer.Written {
    var file = try SealedReader.open(allocator, dir, written_name, identity) orelse return null;
    defer file.deinit();
    var head: WrittenHead = undefined;
    if (!file.read(std.mem.asBytes(&head))) return null;
    var written: writer.Written = .{
        .links_built = head.links_built,
        .page_size = head.page_size,
        .page_count = head.page_count,
        .edges = head.edges,
        .adjacency_bits = head.adjacency_bits,
    };
    var kept = false;
    defer if (!kept) written.deinit(allocator);
    for (0..head.file_count) |_| {
        var entry: WrittenFile = undefined;
        if (!file.read(std.mem.asBytes(&entry))) return null;
        const wanted = std.mem.sliceTo(&entry.name, 0);
        const name = for (names) |name| {
            if (std.mem.eql(u8, name, wanted)) break name;
        } else return null;
        var diagnostic: Diagnostic = .{};
        const found = files.summarize(allocator, dir, name, &diagnostic) catch |err| switch (err) {
            error.OutOfMemory => return error.OutOfMemory,
            else => return null,
        };
        if (found.bytes != entry.bytes or found.checksum != entry.checksum) return null;
        try written.files.append(allocator, .{ .name = name, .summary = found });
    }
    kept = true;
    return written;
}

test "a sealed file reads back; cut, changed or of another build it is as good as missing" {
    const allocator = std.testing.allocator;
    var tmp = std.testing.tmpDir(.{ .iterate = true });
    defer tmp.cleanup();
    var diagnostic: Diagnostic = .{};
    const content = try allocator.alloc(u8, files.chunk_bytes + 777);
    defer allocator.free(content);
    for (content, 0..) |*byte, i| byte.* = @truncate(i * 11);
    {
        var sealed = try SealedWriter.create(allocator, tmp.dir, "a.work", &diagnostic);
        defer sealed.deinit();
        try sealed.write(content[0..5]);
        try sealed.write(content[5..]);
        try std.testing.expectEqual(null, try SealedReader.open(allocator, tmp.dir, "a.work", 7));
        try sealed.seal(7, 3, 1);
    }
    const back = try allocator.alloc(u8, content.len);
    defer allocator.free(back);
    {
        var reader = (try SealedReader.open(allocator, tmp.dir, "a.work", 7)).?;
        defer reader.deinit();
        try std.testing.expectEqual(3, reader.count);
        try std.testing.expectEqual(1, reader.form);
        try std.testing.expect(reader.read(back[0..100]));
        try std.testing.expect(reader.read(back[100..]));
        try std.testing.expectEqualSlices(u8, content, back);
        try std.testing.expect(!reader.read(back[0..1]));
    }
    try std.testing.expectEqual(null, try SealedReader.open(allocator, tmp.dir, "a.work", 8));
    const file = try tmp.dir.openFile("a.work", .{ .mode = .read_write });
    defer file.close();
    const size = try file.getEndPos();
    var prng = base.Prng.init(std.testing.random_seed);
    for (0..40) |_| {
        const at = prng.below(size);
        errdefer std.debug.print("byte {d}\n", .{at});
        var byte: [1]u8 = undefined;
        _ = try file.preadAll(&byte, at);
        try file.pwriteAll(&.{byte[0] ^ (@as(u8, 1) << @intCast(prng.below(8)))}, at);
        try std.testing.expectEqual(null, try SealedReader.open(allocator, tmp.dir, "a.work", 7));
        try file.pwriteAll(&byte, at);
    }
    try file.setEndPos(prng.below(size));
    try std.testing.expectEqual(null, try SealedReader.open(allocator, tmp.dir, "a.work", 7));
}
