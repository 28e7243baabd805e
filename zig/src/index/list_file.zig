//! Neighbor lists of a partitioned build, in a work file: one place of the same size for every vertex. Read back through
//! the page cache, not mapped, so they do not count against the memory of the build.
const std = @import("std");
const diagnostics = @import("diagnostic.zig");
const work = @import("work.zig");
const Diagnostic = diagnostics.Diagnostic;
const Error = diagnostics.Error;

pub const ListFile = struct {
    file: work.GrowingFile,
    degree_max: u32,
    n: u32 = 0,
    /// Places read together once somebody reads them one after another: from `window_first` on.
    window: []u32,
    window_first: u32 = 0,
    window_count: u32 = 0,
    latest: u32 = std.math.maxInt(u32),

    const window_bytes = 1 << 16;

    pub fn create(allocator: std.mem.Allocator, dir: std.fs.Dir, name: []const u8, degree_max: u32, diagnostic: *Diagnostic) Error!ListFile {
        var file = try work.GrowingFile.create(allocator, dir, name, diagnostic);
        errdefer file.deinit();
        const stride = degree_max + 1;
        return .{ .file = file, .degree_max = degree_max, .window = try allocator.alloc(u32, @max(1, window_bytes / 4 / stride) * stride) };
    }

    pub fn deinit(self: *ListFile) void {
        self.file.allocator.free(self.window);
        self.file.deinit();
    }

    fn place_bytes(self: *const ListFile) usize {
        return (self.degree_max + 1) * @sizeOf(u32);
    }

    pub fn append(self: *ListFile, list: []const u32, diagnostic: *Diagnostic) Error!void {
        const unused: [256]u32 = @splat(0);
        try self.file.append(std.mem.asBytes(&@as(u32, @intCast(list.len))), diagnostic);
        try self.file.append(std.mem.sliceAsBytes(list), diagnostic);
        try self.file.append(std.mem.sliceAsBytes(unused[0 .. self.degree_max - list.len]), diagnostic);
        self.n += 1;
    }

    /// All that was appended can be read from now on.
    pub fn flush(self: *ListFile, diagnostic: *Diagnostic) Error!void {
        try self.file.flush(diagnostic);
    }

    /// The list of a vertex; valid until the next call.
    pub fn read(self: *ListFile, vertex: u32, diagnostic: *Diagnostic) Error![]u32 {
        std.debug.assert(vertex < self.n);
        const stride = self.degree_max + 1;
        if (vertex < self.window_first or vertex - self.window_first >= self.window_count) {
            const room: u32 = @intCast(self.window.len / stride);
            self.window_count = 0;
            const count = if (vertex == self.latest +% 1) @min(room, self.n - vertex) else 1;
            try self.file.read_at(std.mem.sliceAsBytes(self.window[0 .. count * stride]), @as(u64, vertex) * self.place_bytes(), diagnostic);
            self.window_first = vertex;
            self.window_count = count;
        }
        self.latest = vertex;
        const place = self.window[(vertex - self.window_first) * stride ..][0..stride];
        if (place[0] > self.degree_max) {
            diagnostic.in_file(self.file.name, "{s} was changed while it was in use", .{self.file.name});
            return error.Io;
        }
        return place[1..][0..place[0]];
    }

    pub fn write(self: *ListFile, vertex: u32, list: []const u32, diagnostic: *Diagnostic) Error!void {
        var place: [256]u32 = undefined;
        place[0] = @intCast(list.len);
        @memcpy(place[1..][0..list.len], list);
        self.file.file.?.pwriteAll(std.mem.sliceAsBytes(place[0 .. list.len + 1]), @as(u64, vertex) * self.place_bytes()) catch |err|
            return diagnostics.file_error(diagnostic, self.file.name, "write", err);
        self.window_count = 0;
    }
};

test "lists read back in any order, and as they were last written" {
    const base = @import("base");
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
    var lists = try ListFile.create(allocator, tmp.dir, "lists.work", degree_max, &diagnostic);
    defer lists.deinit();
    for (model, degrees) |*list, *degree| {
        degree.* = @intCast(prng.below(degree_max + 1));
        for (list) |*id| id.* = @truncate(prng.next());
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
            model[vertex][0] = @truncate(prng.next());
            try lists.write(vertex, model[vertex][0..degrees[vertex]], &diagnostic);
        }
        try std.testing.expectEqualSlices(u32, model[vertex][0..degrees[vertex]], try lists.read(vertex, &diagnostic));
    }
}
