# Runs a command line as this account, or with the rights of an ordinary user, and returns its exit code.
# `runas` does not wait and has no output, so both go through files.
param([string]$Account, [string]$Line, [string]$Output)
$script, $code = "$env:RUNNER_TEMP\line.cmd", "$env:RUNNER_TEMP\code"
Remove-Item -Force -ErrorAction Ignore $code
"@cd /d $PWD`r`n@call $Line > $Output 2> $Output.errors`r`n@echo %ERRORLEVEL%> $code.new`r`n@ren $code.new code" |
  Set-Content -Encoding oem $script
if ($Account -eq "ordinary") { runas /trustlevel:0x20000 "cmd /c $script" } else { cmd /c $script }
while (-not (Test-Path $code)) { Start-Sleep -Seconds 1 }
Get-Content $Output, "$Output.errors"
exit [int](Get-Content $code)
