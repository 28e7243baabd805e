//! The table behind `recall`: storing it, and what it makes of a search.
const std = @import("std");
const index = @import("index");
const search = @import("search");
const common = @import("common.zig");
const open = @import("open.zig");
const ok = common.ok;

pub const Expectation = extern struct {
    struct_size: u32,
    calibrated: i32,
    list_size: u32,
    recall: f32,
    reads: f32,
    rounds: f32,
    estimates: f32,
    expanded: f32,
    records_scored: f32,
};

export fn velo_calibration_store(path: ?[*:0]const u8, calibration_json: ?[*:0]const u8) i32 {
    const folder = path orelse return common.null_argument("path");
    var diagnostic: index.Diagnostic = .{};
    const json = if (calibration_json) |text| std.mem.span(text) else null;
    index.store_calibration(common.allocator, std.mem.span(folder), json, &diagnostic) catch |err| return common.fail_index(err, &diagnostic);
    return ok;
}

export fn velo_expect(handle: ?*open.Index, options: ?*const open.SearchOptions, expectation_out: ?*Expectation) i32 {
    const self = handle orelse return common.null_argument("index");
    const given = options orelse return common.null_argument("options");
    const out = expectation_out orelse return common.null_argument("expectation_out");
    if (self.enter()) |status| return status;
    defer self.leave();
    const o = common.versioned(open.SearchOptions, given) orelse return common.size_error("options", given.struct_size);
    if (open.refused(&o)) |status| return status;
    const calibration = self.calibration();
    const parameters = open.resolved(&o, calibration);
    var expectation: Expectation = std.mem.zeroes(Expectation);
    expectation.list_size = parameters.list_size;
    if (calibration.expected(o.k, parameters.list_size)) |expected| {
        expectation.calibrated = 1;
        expectation.recall = expected.recall;
        expectation.reads = expected.reads;
        expectation.rounds = expected.rounds;
        expectation.estimates = expected.estimates;
        expectation.expanded = expected.expanded;
        expectation.records_scored = expected.scored;
    }
    common.write_versioned(Expectation, out, &expectation);
    return ok;
}
